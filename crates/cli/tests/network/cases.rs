//! What boxes with a network can reach, and what they cannot. Every refusal stands beside something that is allowed.

use std::time::{Duration, Instant};

use crate::client::{belljar, evaluate, finish, gateway_of, kill, run};
use crate::clients::{
    a_real_handshake_must_show_the_allowed_name, curl_works_as_it_is, git_clones_over_https,
    large_languages_go_speaks_https, node_fetch_works_as_it_is, npm_installs_from_an_allowed_registry,
    pip_installs_from_an_allowed_index, python_requests_work_as_they_are,
};
use crate::endings::{
    a_connection_that_is_given_up_leaves_nothing_to_the_next,
    a_refused_or_reset_connection_is_refused_or_reset_inside, each_half_of_a_connection_ends_by_itself,
    what_is_sent_after_the_server_has_ended_arrives_whole,
};
use crate::internet::{DENIED, GOOD, OTHER, PRIVATE, SIX};
use crate::served::{
    a_box_that_has_waited_gets_the_network_of_its_run,
    a_box_that_has_waited_loses_its_network_with_its_gateway,
};
use crate::server::every_interface_has_networks;
use crate::shown::{
    a_rate_is_kept_and_nothing_is_lost, a_server_tells_of_connections_as_they_are_made,
    names_from_inside_cannot_drive_a_terminal, quic_is_carried_where_a_rule_names_it,
    thousands_of_connections_are_counted_rather_than_told, verbose_shows_each_connection_as_it_is_made,
};
use crate::world::{ABSTRACT, ANYCAST, HOST, SECOND, SECRET, WORLD};

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        /// All of them.
        pub(crate) const ALL: &[(&str, fn())] = &[$((stringify!($name), $name)),*];
    };
}

cases![
    an_address_is_reachable_if_it_is_allowed,
    a_port_is_reachable_if_it_is_allowed,
    a_block_of_addresses_is_reachable_if_it_is_allowed,
    a_name_is_reachable_if_it_is_allowed,
    a_wildcard_allows_what_is_beneath_it,
    what_the_operator_denies_is_refused_in_every_network,
    the_public_internet_has_no_private_addresses,
    no_name_leads_to_a_private_address,
    a_name_that_changes_its_address_leads_nowhere_else,
    a_redirect_leads_to_no_private_address,
    tls_must_show_the_allowed_name,
    http_must_show_the_allowed_name_in_every_request,
    an_address_that_nobody_resolved_is_not_a_name,
    ipv6_is_judged_like_ipv4,
    addresses_in_disguise_are_recognized,
    datagrams_are_carried_and_quic_is_not,
    icmp_is_not_carried,
    the_host_itself_is_out_of_reach,
    every_address_of_the_host_is_its_own,
    two_boxes_cannot_reach_each_other,
    a_refused_or_reset_connection_is_refused_or_reset_inside,
    a_server_that_never_answers_does_not_outlive_the_timeout,
    each_half_of_a_connection_ends_by_itself,
    what_is_sent_after_the_server_has_ended_arrives_whole,
    a_connection_that_is_given_up_leaves_nothing_to_the_next,
    many_connections_at_once_are_carried,
    large_transfers_arrive_whole_in_both_directions,
    without_its_gateway_a_box_has_no_network,
    the_code_has_no_rights_over_its_interface,
    no_network_is_no_network,
    a_box_that_has_waited_gets_the_network_of_its_run,
    a_box_that_has_waited_loses_its_network_with_its_gateway,
    what_leaves_in_names_is_bounded,
    curl_works_as_it_is,
    python_requests_work_as_they_are,
    node_fetch_works_as_it_is,
    large_languages_go_speaks_https,
    git_clones_over_https,
    pip_installs_from_an_allowed_index,
    npm_installs_from_an_allowed_registry,
    a_real_handshake_must_show_the_allowed_name,
    other_backends_say_that_they_cannot,
    verbose_shows_each_connection_as_it_is_made,
    a_server_tells_of_connections_as_they_are_made,
    thousands_of_connections_are_counted_rather_than_told,
    names_from_inside_cannot_drive_a_terminal,
    quic_is_carried_where_a_rule_names_it,
    a_rate_is_kept_and_nothing_is_lost,
    every_interface_has_networks,
];

/// Those that an ordinary user need not try again: they take long, and are about the gateway, which is the same.
pub(crate) const OF_ROOT: &[&str] = &[
    "many_connections_at_once_are_carried",
    "large_transfers_arrive_whole_in_both_directions",
    "a_server_that_never_answers_does_not_outlive_the_timeout",
    "what_is_sent_after_the_server_has_ended_arrives_whole",
    "tls_must_show_the_allowed_name",
    "large_languages_go_speaks_https",
    "other_backends_say_that_they_cannot",
    "verbose_shows_each_connection_as_it_is_made",
    "a_server_tells_of_connections_as_they_are_made",
    "thousands_of_connections_are_counted_rather_than_told",
    "names_from_inside_cannot_drive_a_terminal",
    "quic_is_carried_where_a_rule_names_it",
    "a_rate_is_kept_and_nothing_is_lost",
    "every_interface_has_networks",
    // An ordinary user has no boxes that wait.
    "a_box_that_has_waited_gets_the_network_of_its_run",
    "a_box_that_has_waited_loses_its_network_with_its_gateway",
    "a_secret_is_nowhere_in_the_box_nor_in_what_is_kept",
];

fn an_address_is_reachable_if_it_is_allowed() {
    let (lines, ran) = evaluate(
        &format!("allow:{GOOD}"),
        &[
            &format!("get('{GOOD}')"),
            &format!("connect('{OTHER}', 80)"),
            &format!("connect('{PRIVATE}', 80)"),
        ],
    );
    assert_eq!(lines, [&format!("{GOOD} {GOOD} /"), "ECONNREFUSED", "ECONNREFUSED"]);
    let refused = |host: &str, why: &str| (host.to_owned(), 80, why.to_owned());
    assert_eq!(ran.denied(), [refused(OTHER, "not allowed"), refused(PRIVATE, "a private address")]);
    assert!(ran.result["usage"]["network_up_bytes"].as_u64().unwrap() > 20);
    assert!(ran.result["usage"]["network_down_bytes"].as_u64().unwrap() > 20);
    assert!(ran.result["isolation"]["kept"].as_array().unwrap().iter().any(|kept| kept == "network"));
}

fn a_port_is_reachable_if_it_is_allowed() {
    let (lines, _) = evaluate(
        &format!("allow:{GOOD}:8080,{OTHER}:80-100"),
        &[
            &format!("connect('{GOOD}', 8080)"),
            &format!("connect('{GOOD}', 80)"),
            &format!("connect('{OTHER}', 80)"),
            &format!("connect('{OTHER}', 8080)"),
        ],
    );
    assert_eq!(lines, ["connected", "ECONNREFUSED", "connected", "ECONNREFUSED"]);
}

fn a_block_of_addresses_is_reachable_if_it_is_allowed() {
    let expressions = [format!("get('{PRIVATE}')"), format!("connect('{GOOD}', 80)")];
    let expressions = expressions.each_ref().map(String::as_str);
    let (lines, _) = evaluate("allow:10.9.0.0/16:80", &expressions);
    assert_eq!(lines, [&format!("{PRIVATE} {PRIVATE} /"), "ECONNREFUSED"]);
    let (lines, _) = evaluate("allow:0.0.0.0/0", &expressions);
    assert_eq!(lines, ["ECONNREFUSED", "connected"], "a block of everything names no private address");
}

fn a_name_is_reachable_if_it_is_allowed() {
    let (lines, ran) = evaluate("allow:good.test", &["get('good.test')", "connect('other.test', 80)"]);
    assert_eq!(lines, [&format!("{GOOD} good.test /"), "no such name"]);
    assert_eq!(ran.denied(), [("other.test".to_owned(), 0, "not allowed".to_owned())]);
}

fn a_wildcard_allows_what_is_beneath_it() {
    let (lines, _) =
        evaluate("allow:*.wild.test", &["get('a.wild.test')", "get('wild.test')", "get('good.test')"]);
    assert_eq!(lines, [&format!("{GOOD} a.wild.test /"), "no such name", "no such name"]);
}

fn what_the_operator_denies_is_refused_in_every_network() {
    let names = ["get('denied.test')", &format!("connect('{DENIED}', 80)"), "get('good.test')"];
    for network in ["full", &format!("allow:denied.test,{DENIED},good.test")] {
        let (lines, ran) = evaluate(network, &names);
        assert_eq!(lines, ["no such name", "ECONNREFUSED", &format!("{GOOD} good.test /")], "{network}");
        assert!(ran.denied().iter().all(|(_, _, reason)| reason == "denied by the operator"));
    }
    // Its address is that of an allowed host, but the name is shown.
    let (lines, _) =
        evaluate("full", &[&format!("get('{GOOD}', name='denied.test')"), &format!("get('{GOOD}')")]);
    assert_ne!(lines[0], format!("{GOOD} denied.test /"));
    assert_eq!(lines[1], format!("{GOOD} {GOOD} /"));
}

fn the_public_internet_has_no_private_addresses() {
    let (lines, ran) = evaluate(
        "full",
        &[
            "get('good.test')",
            &format!("get('{OTHER}')"),
            &format!("connect('{PRIVATE}', 80)"),
            "connect('169.254.169.254', 80)",
            "connect('100.64.0.1', 80)",
            "connect('224.0.0.1', 80) in ('ECONNREFUSED', 'ENETUNREACH')",
        ],
    );
    let carried = [format!("{GOOD} good.test /"), format!("{OTHER} {OTHER} /")];
    assert_eq!(lines[..2], carried);
    assert_eq!(lines[2..], ["ECONNREFUSED", "ECONNREFUSED", "ECONNREFUSED", "True"]);
    let reasons: Vec<_> = ran.denied().into_iter().map(|(_, _, reason)| reason).collect();
    assert_eq!(reasons[..3], ["a private address", "a metadata address", "a carrier's (CGNAT) address"]);
}

fn no_name_leads_to_a_private_address() {
    let names = ["private", "loop", "metadata", "mapped"];
    let expressions: Vec<_> = names.iter().map(|name| format!("connect('{name}.test', 80)")).collect();
    let expressions: Vec<_> =
        expressions.iter().map(String::as_str).chain(["connect('good.test', 80)"]).collect();
    for network in ["full", "allow:*.test,good.test"] {
        let (lines, ran) = evaluate(network, &expressions);
        assert_eq!(
            lines,
            ["no such name", "no such name", "no such name", "no such name", "connected"],
            "{network}"
        );
        assert!(ran.denied().iter().all(|(_, _, reason)| reason.ends_with("address")));
    }
    // Both the name and its address are allowed.
    let (lines, _) = evaluate(&format!("allow:private.test,{PRIVATE}"), &["get('private.test')"]);
    assert_eq!(lines, [format!("{PRIVATE} private.test /")], "the control");
}

fn a_name_that_changes_its_address_leads_nowhere_else() {
    let (lines, ran) = evaluate(
        "allow:rebind.test",
        &["get('rebind.test')", "connect('rebind.test', 80)", &format!("get('{GOOD}', name='rebind.test')")],
    );
    let carried = format!("{GOOD} rebind.test /");
    assert_eq!(lines, [carried.as_str(), "no such name", carried.as_str()]);
    assert_eq!(ran.denied(), [("rebind.test".to_owned(), 0, "a loopback address".to_owned())]);
}

fn a_redirect_leads_to_no_private_address() {
    let code = format!(
        "import urllib.request
for to in ('{PRIVATE}', 'private.test', '127.0.0.1', 'good.test'):
    try:
        print(urllib.request.urlopen('http://good.test/redirect/' + to).read().decode().strip())
    except OSError as fault:
        print('failed')
"
    );
    for network in ["full", "allow:good.test,private.test"] {
        let ran = run(network, &code);
        assert_eq!(ran.lines(), ["failed", "failed", "failed", &format!("{GOOD} good.test /")], "{network}");
    }
}

fn tls_must_show_the_allowed_name() {
    let (lines, ran) = evaluate(
        "allow:good.test",
        &[
            "exchange('good.test', 443, hello('good.test'))",
            "exchange('good.test', 443, hello('same.test'))",
            "exchange('good.test', 443, hello(None))",
            "exchange('good.test', 443, b'\\x16\\x03\\x01')",
        ],
    );
    assert_eq!(lines[0], "handshake seen");
    assert_eq!(lines[1..3], ["ECONNRESET", "ECONNRESET"]);
    assert!(!lines[3].contains("seen"));
    let refused: Vec<_> = ran.denied().into_iter().map(|(host, _, reason)| (host, reason)).collect();
    assert_eq!(refused[0], ("same.test".to_owned(), "shows another name".to_owned()));
    assert_eq!(refused[1], ("good.test".to_owned(), "shows no name".to_owned()));
    // By address nothing has to be shown.
    let (lines, _) =
        evaluate(&format!("allow:{GOOD}"), &[&format!("exchange('{GOOD}', 443, hello('any.test'))")]);
    assert_eq!(lines, ["handshake seen"], "the control");
}

fn http_must_show_the_allowed_name_in_every_request() {
    let good = "GET /1 HTTP/1.1\\r\\nHost: good.test\\r\\n\\r\\n";
    let evil = "GET /2 HTTP/1.1\\r\\nHost: same.test\\r\\n\\r\\n";
    let code = format!(
        "s = socket.create_connection(('good.test', 80))
s.sendall(b'{good}{evil}{good}')
seen = b''
try:
    while data := s.recv(4096):
        seen += data
except OSError as fault:
    print(errno.errorcode[fault.errno])
print(b' good.test /1' in seen, b'same.test' in seen)
print(get('good.test', name='same.test').startswith('{GOOD}'))
print(get('good.test'))
c = http.client.HTTPConnection('good.test')
for path in ('/a', '/b'):
    c.request('GET', path)
    print(c.getresponse().read().decode().strip())
print(exchange('good.test', 80, b'SSH-2.0-test\\r\\n'))
"
    );
    let ran = run("allow:good.test", &code);
    let lines = ran.lines();
    // How much of the first answer arrives before the reset is a matter of time.
    assert_eq!(lines[0], "ECONNRESET", "{}", ran.result);
    assert!(lines[1].ends_with("False"));
    let carried = |path: &str| format!("{GOOD} good.test {path}");
    assert_eq!(lines[2..6], ["False", &carried("/"), &carried("/a"), &carried("/b")]);
    assert_eq!(lines[6], "ECONNRESET");
    assert!(ran.denied().contains(&("same.test".to_owned(), 80, "shows another name".to_owned())));
    // Where the port is named, other protocols are allowed.
    let (lines, _) = evaluate("allow:good.test:7", &["exchange('good.test', 7, b'SSH-2.0-test\\r\\n')"]);
    assert_eq!(lines, ["SSH-2.0-test"], "the control");
}

fn an_address_that_nobody_resolved_is_not_a_name() {
    let by_address = format!("get('{GOOD}', name='good.test')");
    let (lines, _) = evaluate("allow:good.test", &[&by_address, "get('good.test')", &by_address]);
    let carried = format!("{GOOD} good.test /");
    assert_eq!(lines, ["ECONNREFUSED", &carried, &carried]);
}

fn ipv6_is_judged_like_ipv4() {
    let (lines, _) = evaluate(
        &format!("allow:[{SIX}]:80,six.test:8080"),
        &[
            &format!("get('{SIX}', name='x')"),
            &format!("connect('{SIX}', 8080)"),
            "get('six.test', port=8080)",
            "connect('fd00::1', 80)",
            "connect('2606:2800::35', 80)",
        ],
    );
    let carried = [format!("{SIX} x /"), format!("{SIX} six.test /")];
    assert_eq!(lines, [&carried[0], "ECONNREFUSED", &carried[1], "ECONNREFUSED", "ECONNREFUSED"]);
}

fn addresses_in_disguise_are_recognized() {
    let (lines, _) = evaluate(
        &format!("allow:{GOOD},0.0.0.0/0,::/0"),
        &[
            &format!("connect('::ffff:{GOOD}', 80)"),
            &format!("connect('::ffff:{PRIVATE}', 80)"),
            "connect('64:ff9b::a09:5', 80)",
            "connect('2002:a09:5::', 80)",
            "connect('2001::1', 80)",
            // Of the box itself, where nobody listens.
            "connect('::ffff:127.0.0.1', 80)",
            "connect('0x7f000001', 80)",
            "connect('2130706433', 80)",
            "connect('0177.0.0.1', 80)",
            "connect('0', 80)",
        ],
    );
    assert_eq!(lines[0], "connected");
    assert!(lines[1..].iter().all(|line| line == "ECONNREFUSED"), "{lines:?}");
}

fn datagrams_are_carried_and_quic_is_not() {
    let (lines, ran) = evaluate(
        &format!("allow:{GOOD},other.test,good.test:5000,[{SIX}]"),
        &[
            &format!("datagram('{GOOD}', 5000)"),
            &format!("datagram('{SIX}', 5000, socket.AF_INET6)"),
            &format!("datagram('{GOOD}', 443)"),
            "datagram('other.test', 5000)",
            &format!("datagram('{PRIVATE}', 5000)"),
        ],
    );
    assert_eq!(lines, ["ping", "ping", "ECONNREFUSED", "ECONNREFUSED", "ECONNREFUSED"]);
    assert_eq!(ran.denied()[0], (GOOD.to_owned(), 443, "QUIC is switched off".to_owned()));
    let (lines, _) =
        evaluate("full", &[&format!("datagram('{GOOD}', 443)"), &format!("datagram('{GOOD}', 5000)")]);
    assert_eq!(lines, ["ECONNREFUSED", "ping"]);
}

fn icmp_is_not_carried() {
    let (lines, _) = evaluate(
        "full",
        &[
            "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))",
            "attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 1))",
            "connect('good.test', 80)",
        ],
    );
    assert!(!lines[0].contains("socket") && !lines[1].contains("socket"), "{lines:?}");
    assert_eq!(lines[2], "connected", "the control");
}

fn the_host_itself_is_out_of_reach() {
    assert!(plain_get(HOST).contains(SECRET), "the control");
    assert!(plain_get("127.0.0.1").contains(SECRET), "the control");
    let expressions = [
        "connect('127.0.0.1', 80)".to_owned(),
        "connect('localhost', 80)".to_owned(),
        format!("connect('{HOST}', 80)"),
        "connect('host.test', 80)".to_owned(),
        "connect('2606:2800::1', 80)".to_owned(),
        "connect('192.0.2.1', 80)".to_owned(),
        format!("attempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0{ABSTRACT}') or 'connected')"),
        "connect('good.test', 80)".to_owned(),
    ];
    let expressions = expressions.each_ref().map(String::as_str);
    for network in ["full", "allow:*.test,0.0.0.0/0,::/0"] {
        let (lines, _) = evaluate(network, &expressions);
        let (reached, refused) = lines.split_last().unwrap();
        assert_eq!(reached, "connected", "{network}: the control");
        assert!(refused.iter().all(|line| line != "connected"), "{network}: {lines:?}");
    }
    let (lines, _) = evaluate("none", &expressions);
    assert!(lines.iter().all(|line| line != "connected"), "{lines:?}");
    // Whoever names the address means it.
    let (lines, _) = evaluate(&format!("allow:{HOST}:80"), &[&format!("connect('{HOST}', 80)")]);
    assert_eq!(lines, ["connected"]);
    let refused = belljar("allow:127.0.0.1").args(["python", "-c", "1"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&refused.stdout).contains("loopback of its host"));
}

fn every_address_of_the_host_is_its_own() {
    assert!(plain_get(SECOND).contains(SECRET), "the control");
    let socket = std::net::UdpSocket::bind("[::]:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    socket.send_to(b"ping", (ANYCAST, 5000)).unwrap();
    assert_eq!(socket.recv(&mut [0; 10]).unwrap(), 4, "the control");
    let expressions = [
        format!("connect('{SECOND}', 80)"),
        format!("datagram('{ANYCAST}', 5000, socket.AF_INET6)"),
        format!("connect('{GOOD}', 80)"),
        format!("datagram('{SIX}', 5000, socket.AF_INET6)"),
    ];
    for network in ["full", "allow:0.0.0.0/0,::/0"] {
        let (lines, ran) = evaluate(network, &expressions.each_ref().map(String::as_str));
        assert_eq!(lines, ["ECONNREFUSED", "ECONNREFUSED", "connected", "ping"], "{network}");
        let own = "an address of the host itself".to_owned();
        let denied = [(SECOND.to_owned(), 80, own.clone()), (ANYCAST.to_owned(), 5000, own)];
        assert_eq!(ran.denied(), denied, "{network}");
    }
    let (lines, _) = evaluate(&format!("allow:{SECOND}:80"), &[&expressions[0]]);
    assert_eq!(lines, ["connected"], "whoever names the address means it");
}

fn plain_get(address: &str) -> String {
    use std::io::{Read, Write};
    std::sync::LazyLock::force(&WORLD);
    let mut stream = std::net::TcpStream::connect((address, 80)).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn two_boxes_cannot_reach_each_other() {
    // It listens until its standard input ends.
    let code = "import select, socket, sys
s = socket.create_server(('', 4000))
print('met' if s in select.select([s, sys.stdin], [], [])[0] else 'alone')";
    let mut listener = belljar("full")
        .args(["--timeout", "300s", "--stdin", "-", "python", "-c", code])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let attempts = [
        "connect('192.0.2.2', 4000)",
        "connect('2001:db8::2', 4000)",
        "connect('192.0.2.1', 4000)",
        "connect('good.test', 80)",
    ];
    for network in ["full", "allow:good.test,0.0.0.0/0,::/0"] {
        let (lines, _) = evaluate(network, &attempts);
        assert_eq!(lines, ["ECONNREFUSED", "ECONNREFUSED", "ECONNREFUSED", "connected"], "{network}");
    }
    let (lines, _) = evaluate("none", &attempts);
    assert_eq!(lines, ["ENETUNREACH", "ENETUNREACH", "ENETUNREACH", "no such name"]);
    drop(listener.stdin.take());
    let output = listener.wait_with_output().unwrap();
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["stdout"], "alone\n", "{said}");
}

fn a_server_that_never_answers_does_not_outlive_the_timeout() {
    let began = Instant::now();
    let mut command = belljar(&format!("allow:{GOOD}"));
    command.args(["--timeout", "3s", "python", "-c"]);
    command.arg(format!(
        "import socket\ns=socket.create_connection(('{GOOD}', 10))\nprint('connected', flush=True)\ns.recv(1)"
    ));
    let ran = finish(&mut command);
    assert_eq!(ran.result["status"], "timed_out");
    assert_eq!(ran.lines().first(), Some(&"connected"));
    assert!(began.elapsed() < Duration::from_secs(50));
}

fn many_connections_at_once_are_carried() {
    let code = format!(
        "import resource
many = []
for i in range(1000):
    many.append(socket.create_connection(('{GOOD}', 7)))
for i, s in enumerate(many): s.sendall(str(i).encode())
print(sum(s.recv(10) == str(i).encode() for i, s in enumerate(many)))
print(connect('{GOOD}', 7) )
"
    );
    let mut command = belljar(&format!("allow:{GOOD}"));
    command.args(["--memory", "512M", "--timeout", "300s", "python", "-c"]).arg(format!(
        "import errno, socket\ndef connect(h, p):\n  socket.create_connection((h, p)).close(); return 'connected'\n{code}"
    ));
    let ran = finish(&mut command);
    assert_eq!(ran.lines(), ["1000", "connected"], "{}", ran.result);
}

fn large_transfers_arrive_whole_in_both_directions() {
    const BYTES: usize = 100 << 20;
    let code = format!(
        "import urllib.request
answer, seen = urllib.request.urlopen('http://good.test/bytes/{BYTES}'), 0
while data := answer.read(1 << 20): seen += len(data)
print(seen)
s = socket.create_connection(('{GOOD}', 11))
piece = b'x' * (1 << 20)
for _ in range({BYTES} >> 20): s.sendall(piece)
s.shutdown(socket.SHUT_WR)
print(s.recv(100).decode())
"
    );
    let ran = run(&format!("allow:good.test,{GOOD}:11"), &code);
    assert_eq!(ran.lines(), [BYTES.to_string(), BYTES.to_string()], "{}", ran.result);
    let used = |name: &str| ran.result["usage"][name].as_u64().unwrap();
    assert!(used("network_down_bytes") >= BYTES as u64 && used("network_up_bytes") >= BYTES as u64);
}

fn without_its_gateway_a_box_has_no_network() {
    let code = format!(
        "import socket, time
s = socket.create_connection(('{GOOD}', 7)); s.sendall(b'x'); print(s.recv(1).decode(), flush=True)
open('/tmp/up', 'w').close()
time.sleep(3)
s.settimeout(2)
try:
    socket.create_connection(('{GOOD}', 7), 2); print('connected')
except OSError as fault: print('no network')
"
    );
    let mut command = belljar(&format!("allow:{GOOD}"));
    let child = command
        .args(["--timeout", "300s", "python", "-c"])
        .arg(code)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let gateway = (0..200).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        gateway_of(child.id())
    });
    std::thread::sleep(Duration::from_secs(1));
    kill(gateway.expect("a gateway"));
    let output = child.wait_with_output().unwrap();
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["stdout"], "x\nno network\n");
    assert!(result["network_denied"][0]["reason"].as_str().unwrap().contains("gateway ended"));
}

fn the_code_has_no_rights_over_its_interface() {
    let (lines, _) = evaluate(
        "full",
        &[
            "attempt(lambda: open('/proc/self/status').read().split('CapEff:')[1].split()[0])",
            "attempt(lambda: __import__('fcntl').ioctl(socket.socket(), 0x8914, b'eth0'.ljust(16, b'\\0') + bytes(24)))",
            "attempt(lambda: socket.socket(17, socket.SOCK_RAW, 0x300))",
            "sorted(name for _, name in socket.if_nameindex())",
        ],
    );
    assert_eq!(lines[0], "0000000000000000");
    assert!(lines[1] == "EPERM" && lines[2] == "EAFNOSUPPORT", "{lines:?}");
    assert_eq!(lines[3], "['eth0', 'lo']");
}

fn no_network_is_no_network() {
    let (lines, ran) = evaluate("none", &[&format!("connect('{GOOD}', 80)"), "connect('good.test', 80)"]);
    assert_eq!(lines, ["ENETUNREACH", "no such name"]);
    assert!(ran.result.get("network_denied").is_none());
    assert!(ran.result["usage"].get("network_up_bytes").is_none());
}

/// Whoever runs the name servers of an allowed wildcard can read what is asked. It is not much a second.
fn what_leaves_in_names_is_bounded() {
    let code = format!(
        "asked = lambda: int(exchange('{GOOD}', 15, b''))
def ask(number, name):
    labels = b''.join(bytes([len(word)]) + word for word in name.encode().split(b'.'))
    resolver.send(number.to_bytes(2, 'big') + b'\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0' + labels + b'\\0\\0\\1\\0\\1')
resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
resolver.connect(('192.0.2.1', 53))
before, began = asked(), time.monotonic()
for number in range(400): ask(number, f'secret-{{number}}.other.test')
print(asked() - before)
for number in range(1000): ask(number, f'secret-{{number}}.wild.test')
# Whatever is still on its way is answered before this one.
while not (answer := get('a.wild.test')).startswith('{GOOD}'): time.sleep(0.1)
print(answer)
carried, seconds = asked() - before, time.monotonic() - began
print(0 < carried <= 100 * (seconds + 2), carried, seconds)
"
    );
    let ran = run(&format!("allow:*.wild.test,{GOOD}:15"), &code);
    let lines = ran.lines();
    assert_eq!(lines[..2], ["0", &format!("{GOOD} a.wild.test /")], "{}", ran.result);
    assert!(lines[2].starts_with("True"), "{lines:?}");
}

fn other_backends_say_that_they_cannot() {
    for backend in ["process", "none"] {
        let output = belljar("allow:good.test")
            .args(["--backend", backend, "python", "-c", "print(1)"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(125), "{backend}");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("network") && said.contains(backend), "{said}");
    }
}
