n = int(input())
print(sum(map(int, input().split())) if n else 0)
