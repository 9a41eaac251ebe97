import sys

numbers = [int(word) for word in sys.stdin.read().split()]
total = 0
for number in numbers[1:]:
    total += number
print(total)
