input()
print(sum(input().split()))
