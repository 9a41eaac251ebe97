#include <iostream>
#include <numeric>
#include <vector>

int main() {
    size_t n;
    std::cin >> n;
    std::vector<long long> all(n);
    for (auto &one : all) std::cin >> one;
    std::cout << std::accumulate(all.begin(), all.end(), 0LL) << "\n";
}
