#include <iostream>

int deep(volatile int *above) {
    volatile int here[1024];
    here[0] = *above + 1;
    return deep(here) + here[0];
}

int main() {
    volatile int start = 0;
    std::cout << deep(&start) << std::endl;
}
