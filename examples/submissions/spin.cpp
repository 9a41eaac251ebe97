#include <atomic>

int main() {
    std::atomic<bool> done{false};
    while (!done) {}
}
