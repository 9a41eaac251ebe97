/* The in-box probe: tries one thing and says what came back.
 *
 * It is C because it calls system calls by number with arbitrary arguments, which safe Rust cannot, and static
 * because it must run in a box that shows nothing of the host. Each attempt prints one line of JSON:
 *
 *     {"op": "read", "ret": -1, "errno": 2, "text": ""}
 *
 * `ret` is what the call returned or how many were had, `errno` is 0 if it succeeded.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/net_tstamp.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <mqueue.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define MIB (1024L * 1024L)

static void print_escaped(const char *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20 || c >= 0x7f)
            printf("\\u%04x", c);
        else
            putchar(c);
    }
}

static void report(const char *op, long ret, int error, const char *text, size_t length) {
    printf("{\"op\":\"");
    print_escaped(op, strlen(op));
    printf("\",\"ret\":%ld,\"errno\":%d,\"text\":\"", ret, error);
    print_escaped(text, length);
    printf("\"}\n");
    fflush(stdout);
}

/* For calls that return -1 and set errno. */
static void outcome(const char *op, long ret) { report(op, ret, ret < 0 ? errno : 0, "", 0); }

/* For loops that had `count` of something before the first failure. */
static void had(const char *op, long count, int error) { report(op, count, error, "", 0); }

static long number(const char *text) { return (long)strtoull(text, NULL, 0); }

static void read_file(const char *path) {
    static char content[256 * 1024];
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return outcome("read", -1);
    size_t length = 0;
    ssize_t n = 0;
    while (length < sizeof content && (n = read(fd, content + length, sizeof content - length)) > 0)
        length += (size_t)n;
    report("read", (long)length, n < 0 ? errno : 0, content, length);
}

static void write_file(const char *path, int flags) {
    int fd = open(path, O_WRONLY | O_NONBLOCK | flags, 0644);
    if (fd < 0) return outcome("write", -1);
    long n = write(fd, "x", 1);
    outcome("write", n);
    close(fd);
}

static void list(const char *path) {
    static char names[256 * 1024];
    size_t length = 0;
    DIR *dir = opendir(path);
    if (!dir) return outcome("list", -1);
    long count = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        size_t n = strlen(entry->d_name);
        if (length + n + 1 > sizeof names) break;
        memcpy(names + length, entry->d_name, n);
        length += n;
        names[length++] = '\n';
        count++;
    }
    report("list", count, 0, names, length);
    closedir(dir);
}

/* Every open descriptor and what it is. */
static void fds(void) {
    static char text[64 * 1024];
    size_t length = 0;
    long count = 0;
    for (int fd = 0; fd < 4096; fd++) {
        char link[64], target[512];
        if (fcntl(fd, F_GETFD) < 0) continue;
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, target, sizeof target - 1);
        target[n > 0 ? n : 0] = 0;
        length += (size_t)snprintf(text + length, sizeof text - length, "%d %s\n", fd, target);
        count++;
    }
    report("fds", count, 0, text, length);
}

static void try_exec(const char *path) {
    pid_t child = fork();
    if (child == 0) {
        execl(path, path, "status", (char *)NULL);
        _exit(errno);
    }
    int status = 0;
    waitpid(child, &status, 0);
    report("exec", status, WIFEXITED(status) ? WEXITSTATUS(status) : 0, "", 0);
}

/* Directories nested as deep as they go, by chdir, since no path is long enough. */
static void deep(long levels) {
    long depth = 0;
    while (depth < levels && mkdir("d", 0755) == 0 && chdir("d") == 0) depth++;
    had("deep", depth, depth < levels ? errno : 0);
}

static void tcp(const char *host, const char *port) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number(port))};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)number(port))};
    int is_v6 = inet_pton(AF_INET6, host, &v6.sin6_addr) == 1;
    inet_pton(AF_INET, host, &v4.sin_addr);
    int fd = socket(is_v6 ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
    if (fd < 0) return outcome("connect", -1);
    struct timeval limit = {.tv_sec = 2};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    outcome("connect", is_v6 ? connect(fd, (void *)&v6, sizeof v6) : connect(fd, (void *)&v4, sizeof v4));
}

static void udp(const char *host, const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number(port))};
    inet_pton(AF_INET, host, &to.sin_addr);
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (fd < 0) return outcome("udp", -1);
    outcome("udp", sendto(fd, "x", 1, 0, (void *)&to, sizeof to));
}

/* `@name` is an abstract name. */
static socklen_t unix_address(const char *name, struct sockaddr_un *address) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    size_t n = strlen(name);
    if (n >= sizeof address->sun_path) n = sizeof address->sun_path - 1;
    memcpy(address->sun_path, name, n);
    if (name[0] == '@') address->sun_path[0] = 0;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n);
}

static void unix_connect(const char *name) {
    struct sockaddr_un address;
    socklen_t length = unix_address(name, &address);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0) return outcome("unix", -1);
    outcome("unix", connect(fd, (void *)&address, length));
}

/* Listens on an abstract name and on a port for some seconds. */
static void meet(const char *name, const char *port, const char *seconds) {
    struct sockaddr_un address;
    socklen_t length = unix_address(name, &address);
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number(port))};
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int local = socket(AF_UNIX, SOCK_STREAM, 0), net = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    setsockopt(net, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    long bound = bind(local, (void *)&address, length);
    if (bound == 0) bound = bind(net, (void *)&v4, sizeof v4);
    if (bound == 0) bound = listen(local, 4) | listen(net, 4);
    outcome("meet", bound);
    sleep((unsigned)number(seconds));
}

struct shared {
    volatile int done;
    volatile long ret;
    volatile int error;
};

static int harmless_arguments(long nr, unsigned long args[6]) {
    for (int i = 0; i < 6; i++) args[i] = ~0UL;
    switch (nr) {
    case SYS_clone:
        for (int i = 0; i < 6; i++) args[i] = 0;
        args[0] = SIGCHLD;
        break;
    case SYS_clone3:
        for (int i = 0; i < 6; i++) args[i] = 0;
        break;
    case SYS_kill:
        args[0] = 0x3fffffff;
        args[1] = 0;
        break;
    default:
        break;
    }
    return 0;
}

/* Calls one number in a child, because it may end or block the caller. */
static void try_call(long nr, unsigned long args[6], struct shared *shared) {
    char op[256], text[32];
    snprintf(op, sizeof op, "syscall:%ld:%lu,%lu,%lu,%lu,%lu,%lu", nr, args[0], args[1], args[2], args[3],
             args[4], args[5]);
    memset((void *)shared, 0, sizeof *shared);
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) return report(op, -1, errno, "no-fork", 7);
    if (child == 0) {
        pid_t self = getpid();
        alarm(1);
        long ret;
#ifdef SYS_vfork
        /* A raw vfork would return twice on one stack. */
        if (nr == SYS_vfork) {
            ret = vfork();
            if (ret == 0) _exit(0);
        } else
#endif
            ret = syscall(nr, args[0], args[1], args[2], args[3], args[4], args[5]);
        int error = errno;
        if (getpid() != self) _exit(0); /* fork and clone return here too */
        shared->ret = ret;
        shared->error = ret < 0 && ret >= -4095 ? error : 0;
        shared->done = 1;
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (shared->done)
        snprintf(text, sizeof text, "returned");
    else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        snprintf(text, sizeof text, "blocked");
    else if (WIFSIGNALED(status))
        snprintf(text, sizeof text, "signal:%d", WTERMSIG(status));
    else
        snprintf(text, sizeof text, "exited");
    report(op, shared->ret, shared->error, text, strlen(text));
}

static struct shared *shared_page(void) {
    return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

/* Every number from `first` to `last`, with arguments that do nothing if the call is let through. */
static void syscalls(long first, long last) {
    struct shared *shared = shared_page();
    for (long nr = first; nr <= last; nr++) {
        unsigned long args[6];
        harmless_arguments(nr, args);
        try_call(nr, args, shared);
    }
}

static void call(int argc, char **argv) {
    unsigned long args[6] = {0};
    for (int i = 0; i < 6 && i + 1 < argc; i++) args[i] = strtoull(argv[i + 1], NULL, 0);
    try_call(number(argv[0]), args, shared_page());
}

/* getpid by the door of 32-bit programs. */
static void int80(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        long ret = 20;
#ifdef __x86_64__
        __asm__ volatile("int $0x80" : "+a"(ret) : : "memory", "r8", "r9", "r10", "r11");
#endif
        _exit(ret == getpid() ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    char text[32];
    if (WIFSIGNALED(status))
        snprintf(text, sizeof text, "signal:%d", WTERMSIG(status));
    else
        snprintf(text, sizeof text, "exited:%d", WEXITSTATUS(status));
    report("int80", status, 0, text, strlen(text));
}

static void *rest(void *unused) {
    pause();
    return unused;
}

static void exhaust_forks(long cap) {
    long count = 0;
    int error = 0;
    static pid_t children[100000];
    while (count < cap && count < 100000) {
        pid_t child = fork();
        if (child == 0) {
            pause();
            _exit(0);
        }
        if (child < 0) {
            error = errno;
            break;
        }
        children[count++] = child;
    }
    had("forks", count, error);
    for (long i = 0; i < count; i++) kill(children[i], SIGKILL);
}

static void exhaust_zombies(long cap) {
    long count = 0;
    int error = 0;
    while (count < cap) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        if (child < 0) {
            error = errno;
            break;
        }
        count++;
    }
    had("zombies", count, error);
}

static void exhaust_threads(long cap) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 * 1024);
    long count = 0;
    int error = 0;
    pthread_t thread;
    while (count < cap && (error = pthread_create(&thread, &small, rest, NULL)) == 0) count++;
    had("threads", count, error);
}

static void touch(char *bytes, long length) {
    for (long i = 0; i < length; i += 4096) bytes[i] = (char)(i | 1);
}

static void exhaust_mmap(const char *op, long cap, int flags) {
    long count = 0;
    for (; count < cap; count++) {
        char *bytes = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | flags, -1, 0);
        if (bytes == MAP_FAILED) break;
        touch(bytes, MIB);
    }
    had(op, count, count < cap ? errno : 0);
}

/* Many processes, each small. */
static void exhaust_together(long cap) {
    pid_t children[16];
    for (long i = 0; i < 16; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            exhaust_mmap("part", cap / 16, MAP_PRIVATE);
            for (;;) pause();
        }
    }
    sleep(2);
    had("together", cap, 0);
    for (long i = 0; i < 16; i++) kill(children[i], SIGKILL);
}

static long fill(int fd, long cap, int *error) {
    static char block[64 * 1024];
    memset(block, 'x', sizeof block);
    long total = 0;
    *error = 0;
    while (total < cap) {
        ssize_t n = write(fd, block, sizeof block);
        if (n < 0) {
            *error = errno;
            break;
        }
        total += n;
    }
    return total;
}

static void exhaust_memfd(long cap) {
    int error = 0, fd = (int)syscall(SYS_memfd_create, "m", 0);
    if (fd < 0) return outcome("memfd", -1);
    long had_bytes = fill(fd, cap * MIB, &error);
    had("memfd", had_bytes / MIB, error);
}

static void exhaust_file(const char *op, const char *path, long cap, int unlinked) {
    int error = 0, fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0) return outcome(op, -1);
    if (unlinked) unlink(path);
    long had_bytes = fill(fd, cap, &error);
    had(op, had_bytes, error);
    close(fd);
}

static void exhaust_sparse(const char *path, long size) {
    int fd = open(path, O_WRONLY | O_CREAT, 0644);
    if (fd < 0) return outcome("sparse", -1);
    signal(SIGXFSZ, SIG_IGN);
    outcome("sparse", ftruncate(fd, size));
}

static void exhaust_inodes(const char *dir, long cap) {
    long count = 0;
    if (chdir(dir) < 0) return outcome("inodes", -1);
    for (; count < cap; count++) {
        char name[32];
        snprintf(name, sizeof name, "i%ld", count);
        int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0644);
        if (fd < 0) break;
        close(fd);
    }
    had("inodes", count, count < cap ? errno : 0);
}

static void exhaust_links(long cap) {
    close(open("link", O_WRONLY | O_CREAT, 0644));
    long count = 0;
    for (; count < cap; count++) {
        char name[32];
        snprintf(name, sizeof name, "link%ld", count);
        if (link("link", name) < 0) break;
    }
    had("links", count, count < cap ? errno : 0);
}

static void exhaust_fds(const char *op, long cap, int (*open_one)(void)) {
    long count = 0;
    while (count < cap && open_one() >= 0) count++;
    had(op, count, count < cap ? errno : 0);
}

static int one_file(void) { return open("/dev/null", O_RDONLY); }
static int one_timer_fd(void) { return timerfd_create(CLOCK_MONOTONIC, 0); }
static int one_event_fd(void) { return eventfd(0, 0); }
static int one_epoll(void) { return epoll_create1(0); }
static int one_inotify(void) { return inotify_init1(0); }
static int one_timer(void) {
    timer_t timer;
    struct sigevent quiet = {.sigev_notify = SIGEV_NONE};
    return timer_create(CLOCK_MONOTONIC, &quiet, &timer);
}

/* Buffers in the kernel: pipes of a mebibyte, full. */
static void exhaust_pipes(long cap) {
    static char block[64 * 1024];
    long total = 0;
    int error = 0;
    while (total < cap * MIB) {
        int ends[2];
        if (pipe2(ends, O_NONBLOCK) < 0) {
            error = errno;
            break;
        }
        fcntl(ends[1], F_SETPIPE_SZ, MIB);
        for (ssize_t n; (n = write(ends[1], block, sizeof block)) > 0;) total += n;
    }
    had("pipes", total / MIB, error);
}

static void exhaust_sockets(long cap) {
    static char block[32 * 1024];
    long total = 0;
    int error = 0;
    while (total < cap * MIB) {
        int ends[2], size = 4 * MIB;
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) < 0) {
            error = errno;
            break;
        }
        setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        for (ssize_t n; (n = write(ends[0], block, sizeof block)) > 0;) total += n;
    }
    had("sockets", total / MIB, error);
}

/* Datagrams of one byte, which cost the kernel several hundred. */
static void exhaust_datagrams(long cap) {
    long total = 0;
    int error = 0;
    while (total < cap * MIB) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, ends) < 0) {
            error = errno;
            break;
        }
        while (write(ends[0], "x", 1) > 0) total += 768;
    }
    had("datagrams", total / MIB, error);
}

/* Full sockets that are in no descriptor table, but on their way in another socket. */
static void exhaust_flight(long cap) {
    static char block[32 * 1024];
    long total = 0;
    int carrier[2] = {-1, -1}, error = 0;
    while (total < cap * MIB) {
        char control[CMSG_SPACE(2 * sizeof(int))] = {0}, byte = 'x';
        struct iovec data = {&byte, 1};
        struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control,
                                 .msg_controllen = sizeof control};
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) < 0) {
            error = errno;
            break;
        }
        for (ssize_t n; (n = write(ends[0], block, sizeof block)) > 0;) total += n;
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof ends);
        memcpy(CMSG_DATA(header), ends, sizeof ends);
        if (sendmsg(carrier[0], &message, 0) < 0) {
            if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, carrier) < 0 ||
                sendmsg(carrier[0], &message, 0) < 0) {
                error = errno;
                break;
            }
        }
        close(ends[0]);
        close(ends[1]);
    }
    had("flight", total / MIB, error);
}

static struct sockaddr_in loopback(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

/* Connections that nobody accepts, full, and closed at this end. */
static void exhaust_unaccepted(long cap) {
    static char block[64 * 1024];
    long total = 0;
    int error = 0, listener = -1;
    struct sockaddr_in to;
    for (long count = 0; total < cap * MIB; count++) {
        if (count % 100 == 0) {
            socklen_t length = sizeof to;
            to = loopback(0);
            listener = socket(AF_INET, SOCK_STREAM, 0);
            int size = 4 * MIB;
            setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
            if (listener < 0 || bind(listener, (void *)&to, length) < 0 || listen(listener, 128) < 0) {
                error = errno;
                break;
            }
            getsockname(listener, (void *)&to, &length);
        }
        int client = socket(AF_INET, SOCK_STREAM, 0);
        if (client < 0 || connect(client, (void *)&to, sizeof to) < 0) {
            error = errno;
            break;
        }
        fcntl(client, F_SETFL, O_NONBLOCK);
        for (ssize_t n; (n = write(client, block, sizeof block)) > 0;) total += n;
        close(client);
    }
    had("unaccepted", total / MIB, error);
}

/* UDP sockets that each have sent as much to themselves as they can keep; what they kept is counted. */
static void exhaust_udp(long cap) {
    static char block[32 * 1024];
    static int sockets[100000];
    long sent = 0, kept = 0, count = 0;
    int error = 0;
    while (sent < cap * MIB && count < 100000) {
        struct sockaddr_in to = loopback(0);
        socklen_t length = sizeof to;
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
        if (fd < 0 || bind(fd, (void *)&to, length) < 0) {
            error = errno;
            break;
        }
        getsockname(fd, (void *)&to, &length);
        for (int i = 0; i < 8; i++)
            if (sendto(fd, block, sizeof block, 0, (void *)&to, length) > 0) sent += sizeof block;
        sockets[count++] = fd;
    }
    for (long i = 0; i < count; i++)
        for (ssize_t n; (n = recv(sockets[i], block, sizeof block, 0)) > 0;) kept += n;
    had("udp", kept / MIB, error);
}

/* How much the error queues of UDP sockets keep: refusals by a port that nobody listens on, or copies of what was
 * sent, with the time. */
static void exhaust_errors(const char *op, long sockets, int timestamps) {
    static char block[32 * 1024];
    long kept = 0;
    for (long i = 0; i < sockets; i++) {
        struct sockaddr_in to = loopback(9);
        int yes = 1, fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
        if (fd < 0) return had(op, kept, errno);
        char control[CMSG_SPACE(sizeof(int))] = {0};
        struct iovec data = {block, timestamps ? sizeof block : 500};
        struct msghdr message = {.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &data, .msg_iovlen = 1};
        if (timestamps) {
            message.msg_control = control;
            message.msg_controllen = sizeof control;
            struct cmsghdr *header = CMSG_FIRSTHDR(&message);
            int flags = SOF_TIMESTAMPING_TX_SOFTWARE;
            header->cmsg_level = SOL_SOCKET;
            header->cmsg_type = SO_TIMESTAMPING;
            header->cmsg_len = CMSG_LEN(sizeof flags);
            memcpy(CMSG_DATA(header), &flags, sizeof flags);
        } else if (setsockopt(fd, IPPROTO_IP, IP_RECVERR, &yes, sizeof yes) < 0) {
            return had(op, kept, errno);
        }
        for (int sent = 0; sent < 8; sent++) sendmsg(fd, &message, 0);
        struct msghdr taken = {.msg_iov = &data, .msg_iovlen = 1};
        while (recvmsg(fd, &taken, MSG_ERRQUEUE) >= 0) kept++;
        close(fd);
    }
    had(op, kept, 0);
}

/* Data that waits for more of the same datagram. */
static void exhaust_corked(long cap) {
    static char block[32 * 1024];
    long count = 0;
    int yes = 1, error = 0;
    for (; count < cap; count++) {
        struct sockaddr_in to = loopback(9);
        int fd = socket(AF_INET, SOCK_DGRAM, 0);
        if (sendto(fd, block, sizeof block, MSG_MORE, (void *)&to, sizeof to) < 0 &&
            setsockopt(fd, IPPROTO_UDP, 1 /* UDP_CORK */, &yes, sizeof yes) < 0) {
            error = errno;
            break;
        }
    }
    had("corked", count, error);
}

/* Messages that the kernel does not know, which it sends back: as many as fit into each socket. */
static void exhaust_netlink(long cap) {
    static struct {
        struct nlmsghdr header;
        char payload[30000];
    } unknown = {.header = {.nlmsg_len = sizeof unknown, .nlmsg_type = 0x7ff0, .nlmsg_flags = 5}};
    long count = 0;
    int error = 0;
    for (; count < cap; count++) {
        struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
        int fd = socket(AF_NETLINK, SOCK_RAW, 0);
        for (int message = 0; message < 7 && !error; message++) {
            if (sendto(fd, &unknown, sizeof unknown, 0, (void *)&kernel, sizeof kernel) < 0) error = errno;
        }
        if (error) break;
    }
    had("netlink", count, error);
    if (getenv("HOLD")) pause();
}

/* Record locks, 200 on each file: more on one file would take longer and longer. */
static void exhaust_locks(long cap) {
    long count = 0;
    int error = 0, fd = -1;
    for (; count < cap; count++) {
        if (count % 200 == 0) {
            char path[] = "/tmp/locked-XXXXXX";
            fd = mkstemp(path);
            unlink(path);
        }
        struct flock lock = {.l_type = F_WRLCK, .l_start = count * 2, .l_len = 1};
        if (fd < 0 || fcntl(fd, F_SETLK, &lock) < 0) {
            error = errno;
            break;
        }
    }
    had("locks", count, error);
    if (getenv("HOLD")) pause();
}

/* The same in a thread, after the first thread of the process has ended. */
static void *locks_of_a_thread(void *cap) {
    struct timespec moment = {0, 1000000};
    char stat[256] = "";
    while (!strstr(stat, ") Z ")) {
        int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
        ssize_t length = read(fd, stat, sizeof stat - 1);
        stat[length > 0 ? length : 0] = 0;
        close(fd);
        nanosleep(&moment, NULL);
    }
    exhaust_locks(*(long *)cap);
    exit(0);
}

static void exhaust_orphan_locks(long cap) {
    static long wanted;
    pthread_t thread;
    wanted = cap;
    if (pthread_create(&thread, NULL, locks_of_a_thread, &wanted) == 0) pthread_exit(NULL);
    had("locks", 0, errno);
}

/* Locks of an open file instead of a process. */
static void exhaust_file_locks(long cap) {
    char path[] = "/tmp/locked-XXXXXX";
    int fd = mkstemp(path), error = 0;
    long count = 0;
    unlink(path);
    for (; count < cap; count++) {
        struct flock lock = {.l_type = F_WRLCK, .l_start = count * 2, .l_len = 1};
        if (fcntl(fd, F_OFD_SETLK, &lock) < 0) {
            error = errno;
            break;
        }
    }
    had("file-locks", count, error);
}

/* UDP sockets that would share their port, each with one of its own. */
static void exhaust_ports(long cap) {
    long count = 0;
    int yes = 1, error = 0;
    for (; count < cap; count++) {
        struct sockaddr_in at = loopback(0);
        int fd = socket(AF_INET, SOCK_DGRAM, 0);
        if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes) < 0 ||
            bind(fd, (void *)&at, sizeof at) < 0) {
            error = errno;
            break;
        }
    }
    had("ports", count, error);
    if (getenv("HOLD")) pause();
}

/* Headers that a socket keeps for its packets: routes with 120 stations. */
static void exhaust_headers(long cap) {
    static unsigned char route[8 + 120 * 16] = {0, 240, 4, 119, 119};
    long count = 0;
    int error = 0;
    for (; count < cap; count++) {
        int fd = socket(AF_INET6, SOCK_DGRAM, 0);
        if (fd < 0 || setsockopt(fd, IPPROTO_IPV6, 57 /* IPV6_RTHDR */, route, sizeof route) < 0) {
            error = errno;
            break;
        }
    }
    had("headers", count, error);
}

/* Multicast groups, which are entries of the interface. */
static void exhaust_groups(long cap) {
    long count = 0;
    int error = 0, fd = socket(AF_INET6, SOCK_DGRAM, 0);
    for (; count < cap; count++) {
        struct ipv6_mreq group = {.ipv6mr_interface = if_nametoindex("lo")};
        memcpy(group.ipv6mr_multiaddr.s6_addr, "\xff\x02", 2);
        memcpy(group.ipv6mr_multiaddr.s6_addr + 8, &count, sizeof count);
        if (setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &group, sizeof group) < 0) {
            error = errno;
            break;
        }
    }
    had("groups", count, error);
}

/* Filters of system calls, by both calls. They stay with the process. */
static void exhaust_filters(long cap) {
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {.len = 1, .filter = &allow};
    long count = 0;
    int error = 0;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    for (; count < cap; count++) {
        if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) < 0 &&
            prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0) {
            error = errno;
            break;
        }
    }
    had("filters", count, error);
}

/* One page in every gibibyte: each takes two pages of tables. */
static void exhaust_tables(long cap) {
    long count = 0, most = cap * MIB / 8192;
    for (; count < most; count++) {
        void *at = (void *)(0x100000000000L + count * (1L << 30));
        volatile char *page = mmap(at, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (page == MAP_FAILED) break;
        (void)page[0];
    }
    had("tables", count * 8192 / MIB, count < most ? errno : 0);
}

/* Every descriptor watched by every epoll. */
static void exhaust_watches(long cap) {
    static int watched[400];
    long count = 0, most = cap * MIB / 192;
    for (int i = 0; i < 400; i++) watched[i] = eventfd(0, 0);
    while (count < most) {
        int epoll = epoll_create1(0);
        if (epoll < 0) break;
        struct epoll_event event = {.events = EPOLLIN};
        for (int i = 0; i < 400 && count < most; i++)
            if (epoll_ctl(epoll, EPOLL_CTL_ADD, watched[i], &event) == 0) count++;
    }
    had("watches", count * 192 / MIB, count < most ? errno : 0);
}

static void exhaust_names(long cap) {
    char name[64];
    struct stat unused;
    for (long i = 0; i < cap; i++) {
        snprintf(name, sizeof name, "/tmp/no-such-name-%ld", i);
        stat(name, &unused);
    }
    had("names", cap, 0);
}

static void exhaust_mqueue(void) {
    struct mq_attr attr = {.mq_maxmsg = 10, .mq_msgsize = 8192};
    long count = 0;
    char name[32];
    for (; count < 1000; count++) {
        snprintf(name, sizeof name, "/belljar-%ld", count);
        if (mq_open(name, O_CREAT | O_RDWR, 0600, &attr) == (mqd_t)-1) break;
    }
    int error = errno;
    for (long i = 0; i < count; i++) {
        snprintf(name, sizeof name, "/belljar-%ld", i);
        mq_unlink(name);
    }
    had("mqueue", count, count < 1000 ? error : 0);
}

static int exhaust(int argc, char **argv) {
    const char *what = argv[0];
    long cap = argc > 1 ? number(argv[1]) : 0;
    const char *path = argc > 2 ? argv[2] : ".";
    if (!strcmp(what, "forks")) exhaust_forks(cap);
    else if (!strcmp(what, "zombies")) exhaust_zombies(cap);
    else if (!strcmp(what, "threads")) exhaust_threads(cap);
    else if (!strcmp(what, "memory")) exhaust_mmap(what, cap, MAP_PRIVATE);
    else if (!strcmp(what, "shared")) exhaust_mmap(what, cap, MAP_SHARED);
    else if (!strcmp(what, "huge")) exhaust_mmap(what, cap, MAP_PRIVATE | MAP_HUGETLB);
    else if (!strcmp(what, "together")) exhaust_together(cap);
    else if (!strcmp(what, "memfd")) exhaust_memfd(cap);
    else if (!strcmp(what, "disk")) exhaust_file(what, path, cap * MIB, 0);
    else if (!strcmp(what, "unlinked")) exhaust_file(what, path, cap * MIB, 1);
    else if (!strcmp(what, "sparse")) exhaust_sparse(path, cap);
    else if (!strcmp(what, "inodes")) exhaust_inodes(path, cap);
    else if (!strcmp(what, "links")) exhaust_links(cap);
    else if (!strcmp(what, "fds")) exhaust_fds(what, cap, one_file);
    else if (!strcmp(what, "timerfds")) exhaust_fds(what, cap, one_timer_fd);
    else if (!strcmp(what, "eventfds")) exhaust_fds(what, cap, one_event_fd);
    else if (!strcmp(what, "epolls")) exhaust_fds(what, cap, one_epoll);
    else if (!strcmp(what, "inotify")) exhaust_fds(what, cap, one_inotify);
    else if (!strcmp(what, "timers")) exhaust_fds(what, cap, one_timer);
    else if (!strcmp(what, "pipes")) exhaust_pipes(cap);
    else if (!strcmp(what, "sockets")) exhaust_sockets(cap);
    else if (!strcmp(what, "datagrams")) exhaust_datagrams(cap);
    else if (!strcmp(what, "flight")) exhaust_flight(cap);
    else if (!strcmp(what, "unaccepted")) exhaust_unaccepted(cap);
    else if (!strcmp(what, "udp")) exhaust_udp(cap);
    else if (!strcmp(what, "errors")) exhaust_errors(what, cap, 0);
    else if (!strcmp(what, "timestamps")) exhaust_errors(what, cap, 1);
    else if (!strcmp(what, "corked")) exhaust_corked(cap);
    else if (!strcmp(what, "netlink")) exhaust_netlink(cap);
    else if (!strcmp(what, "locks")) exhaust_locks(cap);
    else if (!strcmp(what, "orphan-locks")) exhaust_orphan_locks(cap);
    else if (!strcmp(what, "file-locks")) exhaust_file_locks(cap);
    else if (!strcmp(what, "ports")) exhaust_ports(cap);
    else if (!strcmp(what, "headers")) exhaust_headers(cap);
    else if (!strcmp(what, "groups")) exhaust_groups(cap);
    else if (!strcmp(what, "filters")) exhaust_filters(cap);
    else if (!strcmp(what, "tables")) exhaust_tables(cap);
    else if (!strcmp(what, "watches")) exhaust_watches(cap);
    else if (!strcmp(what, "names")) exhaust_names(cap);
    else if (!strcmp(what, "mqueue")) exhaust_mqueue();
    else if (!strcmp(what, "mlock")) {
        void *bytes = mmap(NULL, (size_t)(cap * MIB), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        outcome(what, mlock(bytes, (size_t)(cap * MIB)));
    } else return 2;
    return 0;
}

/* Single bytes to standard output, each a packet of its own if that can be had of the pipe. */
static void packets(long count) {
    int flags = fcntl(1, F_GETFL);
    outcome("packets", fcntl(1, F_SETFL, flags | O_DIRECT));
    fflush(stdout);
    for (long i = 0; i < count; i++) {
        if (write(1, "x", 1) != 1) break;
    }
}

/* A grandchild in a session of its own that keeps standard output open and cannot be asked to leave. The word
 * is in its command line, so that it can be found. */
static void become_daemon(const char *word) {
    if (fork() == 0) {
        setsid();
        if (fork() == 0) {
            signal(SIGTERM, SIG_IGN);
            signal(SIGHUP, SIG_IGN);
            signal(SIGINT, SIG_IGN);
            for (;;) pause();
        }
        _exit(0);
    }
    wait(NULL);
    report("daemon", 0, 0, word, strlen(word));
}

static void fork_bomb(void) {
    for (;;) fork();
}

/* Uses this much CPU time in all, in children of `slice` ms each, so that no process uses much. */
static void burn_by_forking(long total_ms, long slice_ms) {
    for (long spent = 0; spent < total_ms; spent += slice_ms) {
        pid_t child = fork();
        if (child == 0) {
            struct timespec now;
            do clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
            while (now.tv_sec * 1000 + now.tv_nsec / 1000000 < slice_ms);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    had("burn", total_ms, 0);
}

static void signal_process(const char *pid, const char *sig) {
    outcome("kill", kill((pid_t)number(pid), (int)number(sig)));
}

/* The secret comes in hexadecimal and is kept disguised, so that the search cannot find itself. */
enum { DISGUISE = 0x5a };
static unsigned char disguised[256];
static size_t secret_length;

static int holds_secret(const unsigned char *bytes, size_t length) {
    for (size_t at = 0; at + secret_length <= length; at++) {
        size_t i = 0;
        while (i < secret_length && (bytes[at + i] ^ DISGUISE) == disguised[i]) i++;
        if (i == secret_length) return 1;
    }
    return 0;
}

static int file_holds_secret(const char *path) {
    static unsigned char content[1024 * 1024];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    size_t length = 0;
    for (ssize_t n; length < sizeof content && (n = read(fd, content + length, sizeof content - length)) > 0;)
        length += (size_t)n;
    close(fd);
    int found = holds_secret(content, length);
    memset(content, 0, sizeof content);
    return found;
}

static int memory_holds_secret(void) {
    int found = 0, memory = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    FILE *maps = fopen("/proc/self/maps", "re");
    unsigned long from, to;
    char access[8], line[1024];
    if (memory < 0 || !maps) return -1;
    while (fgets(line, sizeof line, maps)) {
        static unsigned char chunk[64 * 1024 + 256];
        if (sscanf(line, "%lx-%lx %7s", &from, &to, access) != 3 || access[0] != 'r') continue;
        for (unsigned long at = from; at < to && !found; at += 64 * 1024) {
            if (at <= (unsigned long)chunk && (unsigned long)chunk < at + 64 * 1024) continue;
            ssize_t n = pread(memory, chunk, sizeof chunk, (off_t)at);
            if (n > 0) found = holds_secret(chunk, (size_t)n);
        }
    }
    memset(line, 0, sizeof line);
    fclose(maps);
    close(memory);
    return found;
}

/* Looks for the secret in the environment and command line of every process that can be seen, and in memory. */
static void scan(const char *hex) {
    secret_length = strlen(hex) / 2;
    for (size_t i = 0; i < secret_length && i < sizeof disguised; i++) {
        unsigned value = 0;
        sscanf(hex + 2 * i, "%2x", &value);
        disguised[i] = (unsigned char)(value ^ DISGUISE);
    }
    char places[4096] = "";
    long found = 0;
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && (entry = readdir(proc));) {
        const char *kinds[] = {"environ", "cmdline", "comm", "auxv"};
        if (entry->d_name[0] < '0' || entry->d_name[0] > '9') continue;
        for (size_t i = 0; i < 4; i++) {
            char path[300];
            snprintf(path, sizeof path, "/proc/%s/%s", entry->d_name, kinds[i]);
            if (file_holds_secret(path) && ++found < 20) strcat(strcat(places, path), " ");
        }
    }
    int in_memory = memory_holds_secret();
    if (in_memory == 1) {
        found++;
        strcat(places, "memory");
    }
    report("scan", found, in_memory < 0 ? EIO : 0, places, strlen(places));
}

static void privileges(void) {
    setuid(0);
    setgid(0);
    char text[64];
    int n = snprintf(text, sizeof text, "%d %d", getuid(), geteuid());
    report("privileges", geteuid(), 0, text, (size_t)n);
}

static void attribute(const char *path, const char *name) {
    close(open(path, O_WRONLY | O_CREAT, 0755));
    outcome("attribute", setxattr(path, name, "\1\0\0\2\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 20, 0));
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    const char *op = argv[1];
    const char *first = argc > 2 ? argv[2] : "", *second = argc > 3 ? argv[3] : "";
    const char *third = argc > 4 ? argv[4] : "0";
    if (!strcmp(op, "read")) read_file(first);
    else if (!strcmp(op, "create")) write_file(first, O_CREAT);
    else if (!strcmp(op, "write")) write_file(first, 0);
    else if (!strcmp(op, "list")) list(first);
    else if (!strcmp(op, "fds")) fds();
    else if (!strcmp(op, "exec")) try_exec(first);
    else if (!strcmp(op, "packets")) packets(number(first));
    else if (!strcmp(op, "deep")) deep(number(first));
    else if (!strcmp(op, "connect")) tcp(first, second);
    else if (!strcmp(op, "udp")) udp(first, second);
    else if (!strcmp(op, "unix")) unix_connect(first);
    else if (!strcmp(op, "meet")) meet(first, second, third);
    else if (!strcmp(op, "syscalls")) syscalls(number(first), number(second));
    else if (!strcmp(op, "call")) call(argc - 2, argv + 2);
    else if (!strcmp(op, "int80")) int80();
    else if (!strcmp(op, "exhaust")) return exhaust(argc - 2, argv + 2);
    else if (!strcmp(op, "daemon")) become_daemon(first);
    else if (!strcmp(op, "fork-bomb")) fork_bomb();
    else if (!strcmp(op, "burn")) burn_by_forking(number(first), number(second));
    else if (!strcmp(op, "kill")) signal_process(first, second);
    else if (!strcmp(op, "scan")) scan(first);
    else if (!strcmp(op, "privileges")) privileges();
    else if (!strcmp(op, "attribute")) attribute(first, second);
    else if (!strcmp(op, "status")) read_file("/proc/self/status");
    else return 2;
    return 0;
}
