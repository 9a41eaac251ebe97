#include <stdio.h>

int main(void) {
    int n;
    unsigned sum = 0, x;
    scanf("%d", &n);
    while (n--) scanf("%u", &x), sum += x;
    printf("%d\n", (int)sum);
}
