#include <stdio.h>

static long long number(void) {
    int c = getchar(), sign = 1;
    long long value = 0;
    while (c != '-' && (c < '0' || c > '9')) c = getchar();
    if (c == '-') sign = -1, c = getchar();
    for (; c >= '0' && c <= '9'; c = getchar()) value = value * 10 + c - '0';
    return sign * value;
}

int main(void) {
    long long n = number(), sum = 0;
    while (n--) sum += number();
    printf("%lld\n", sum);
}
