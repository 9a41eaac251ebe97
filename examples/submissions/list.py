n = int(input())
print(sum(len(row) for row in [bytearray(i) for i in range(1, n + 1)]))
