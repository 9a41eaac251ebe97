#include <iostream>

int main() {
    long long n, sum = 0, x;
    std::cin >> n;
    while (n-- && std::cin >> x) sum += x;
    std::cout << sum << std::endl;
}
