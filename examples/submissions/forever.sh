read -r n
while [ "$n" -ne 0 ]; do :; done
