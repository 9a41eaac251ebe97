#include <iostream>
#include <string>

int main() {
    int sum = std::string("6");
    std::cout << sum << std::endl;
}
