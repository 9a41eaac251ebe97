for number in input().split()
    print(number)
