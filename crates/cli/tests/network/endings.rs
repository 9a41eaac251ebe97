//! How connections end, in the box and outside.

use crate::client::{evaluate, run};
use crate::internet::GOOD;

/// A server that resets at once may do so before the gateway has seen that it accepted: then the box is refused.
pub(crate) fn a_refused_or_reset_connection_is_refused_or_reset_inside() {
    let (lines, ran) = evaluate(
        &format!("allow:{GOOD}"),
        &[
            &format!("connect('{GOOD}', 1)"),
            &format!("exchange('{GOOD}', 9, b'x') in ('ECONNRESET', 'EPIPE', 'ECONNREFUSED')"),
            &format!("exchange('{GOOD}', 7, b'x')"),
        ],
    );
    assert_eq!(lines, ["ECONNREFUSED", "True", "x"]);
    assert!(ran.denied().is_empty(), "nothing was refused by us");
}

pub(crate) fn each_half_of_a_connection_ends_by_itself() {
    let code = format!(
        "s = socket.create_connection(('{GOOD}', 11))
s.sendall(b'x' * 100000)
s.shutdown(socket.SHUT_WR)
print(s.recv(100).decode(), s.recv(100))
"
    );
    assert_eq!(run(&format!("allow:{GOOD}"), &code).lines(), ["100000 b''"]);
}

pub(crate) fn what_is_sent_after_the_server_has_ended_arrives_whole() {
    const BYTES: usize = 3_000_000;
    let code = format!(
        "s = socket.create_connection(('{GOOD}', 12))
print(s.recv(1))
s.sendall(b'x' * {BYTES})
s.close()
for _ in range(200):
    time.sleep(0.1)
    if (read := exchange('{GOOD}', 13, b'')) != '0': break
print(read)
"
    );
    let ran = run(&format!("allow:{GOOD}"), &code);
    assert_eq!(ran.lines(), ["b''".to_owned(), BYTES.to_string()], "{}", ran.result);
}

pub(crate) fn a_connection_that_is_given_up_leaves_nothing_to_the_next() {
    // The server numbers its connections. Whoever is gone when the answer to its first packet arrives resets the connection.
    let code = format!(
        "first = int(exchange('{GOOD}', 14, b''))
s = socket.socket()
s.setblocking(False)
print(errno.errorcode[s.connect_ex(('{GOOD}', 14))])
s.close()
time.sleep(0.3)
print([int(exchange('{GOOD}', 14, b'')) - first for _ in range(3)])
"
    );
    let ran = run(&format!("allow:{GOOD}"), &code);
    assert_eq!(ran.lines(), ["EINPROGRESS", "[2, 3, 4]"], "{}", ran.result);
}
