#include <stdio.h>

int main(void) {
    int n;
    long long sum = 0, x;
    if (scanf("%d", &n) != 1) return 1;
    while (n-- && scanf("%lld", &x) == 1) sum += x;
    printf("%lld\n", sum);
}
