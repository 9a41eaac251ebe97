#include <stdio.h>

int main(void) {
    int *volatile nowhere = 0;
    printf("%d\n", *nowhere);
}
