n = int(input())
print(n * (m + 1) // 2)
