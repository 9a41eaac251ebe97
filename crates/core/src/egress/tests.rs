use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

fn egress(allow: &[&str], deny: &[&str]) -> Egress {
    let rules = |texts: &[&str]| texts.iter().map(|text| Rule::parse(text).unwrap()).collect();
    Egress::from_rules(Some(rules(allow)), rules(deny))
}

fn full(deny: &[&str]) -> Egress {
    Egress::from_rules(None, deny.iter().map(|text| Rule::parse(text).unwrap()).collect())
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn tcp(egress: &Egress, address: &str, port: u16, resolved: &[&str]) -> Result<Passage, Reason> {
    egress.connect(Transport::Tcp, ip(address), port, resolved)
}

#[test]
fn rules_read_back_as_they_are_shown() {
    for text in [
        "example.org",
        "*.example.org",
        "example.org:443",
        "_srv.example.org:8000-9000",
        "10.1.0.0/16:5432",
        "93.184.216.34",
        "2606:2800::/32",
        "[2606:2800::1]:443",
        "[2606:2800::/32]:1-1024",
        "example.org:443/udp",
        "10.1.0.0/16:53/tcp",
        "[2606:2800::/32]:443/udp",
        "*.example.org:1-65535/udp",
    ] {
        assert_eq!(Rule::parse(text).unwrap().to_string(), text);
    }
    assert_eq!(Rule::parse("EXAMPLE.org.").unwrap().to_string(), "example.org");
    assert_eq!(Rule::parse("[::ffff:10.0.0.1]:80").unwrap().to_string(), "10.0.0.1:80");
    assert_eq!(Rule::parse("::ffff:10.0.0.0/104").unwrap().to_string(), "10.0.0.0/8");
    assert_eq!(Rule::parse("10.1.2.3/16").unwrap().to_string(), "10.1.0.0/16");
}

#[test]
fn what_is_no_host_is_refused() {
    for text in [
        "",
        "*",
        "*.",
        "a b",
        "a..b",
        ".a",
        "-a.org",
        "a:0",
        "a:x",
        "a:",
        "a:2-1",
        "a:+1",
        "a:1-2-3",
        "a:1/",
        "a:1/sctp",
        "a:1/UDP",
        "a:1/udp/udp",
        "a:/udp",
        "a/udp",
        "10.0.0.0/udp",
        "[2606::1]/udp",
        "a.*.b",
        "*a.org",
        "127.1",
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "[example.org]:1",
        "[::1",
        "10.0.0.0/33",
        "::/129",
        "1.2.3/8",
        "::ffff:0.0.0.0/90",
        "ä.org",
    ] {
        assert!(Rule::parse(text).is_err(), "{text:?}");
    }
    for text in
        ["127.0.0.1", "127.0.0.0/8", "::1", "[::ffff:127.0.0.1]:80", "0.0.0.0", "::", "224.0.0.1", "ff02::1"]
    {
        assert!(Rule::parse(text).is_err(), "{text:?}: no rule can name it");
    }
    let long = format!("{}.org", "a".repeat(64));
    assert!(Rule::parse(&long).is_err());
}

#[test]
fn special_addresses_are_recognized_in_every_disguise() {
    for text in [
        "127.0.0.1",
        "127.255.1.2",
        "::1",
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "10.0.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "::ffff:192.168.0.1",
        "100.64.0.1",
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "168.63.129.16",
        "fd00:ec2::254",
        "fe80::1",
        "fc00::1",
        "fec0::1",
        "64:ff9b::7f00:1",
        "64:ff9b::a00:1",
        "2002:7f00:1::",
        "2001:0:1::1",
        "2001:db8::1",
        "192.0.2.1",
        "198.51.100.1",
        "203.0.113.1",
        "198.18.0.1",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "0.0.0.0",
        "0.1.2.3",
        "240.0.0.1",
        "::",
        "4000::1",
        "100::1",
        "192.0.0.8",
    ] {
        assert!(Class::of(ip(text)).is_some(), "{text}");
        assert!(tcp(&full(&[]), text, 80, &[]).is_err(), "{text}");
        // Whoever answers for a name cannot lead there, either.
        assert!(full(&[]).answer(ip(text)).is_err(), "{text}");
        assert!(
            tcp(&egress(&["evil.org", "evil.org:80", "0.0.0.0/0", "::/0"], &[]), text, 80, &["evil.org"])
                .is_err()
        );
    }
    for text in
        ["1.1.1.1", "93.184.216.34", "172.32.0.1", "11.0.0.1", "2606:2800::1", "2a00::1", "::ffff:1.1.1.1"]
    {
        assert_eq!(Class::of(ip(text)), None, "{text}: the control");
        assert_eq!(tcp(&full(&[]), text, 80, &[]), Ok(Passage::Free), "{text}");
    }
}

#[test]
fn an_address_is_reachable_if_a_rule_names_it() {
    let own = egress(&["10.1.0.0/16:5432", "93.184.216.34", "fd00::5"], &[]);
    assert_eq!(tcp(&own, "10.1.2.3", 5432, &[]), Ok(Passage::Free));
    assert_eq!(tcp(&own, "::ffff:10.1.2.3", 5432, &[]), Ok(Passage::Free));
    assert_eq!(tcp(&own, "fd00::5", 1, &[]), Ok(Passage::Free));
    assert_eq!(tcp(&own, "10.1.2.3", 5433, &[]), Err(Reason::Special(Class::Private)));
    assert_eq!(tcp(&own, "10.2.2.3", 5432, &[]), Err(Reason::Special(Class::Private)));
    assert_eq!(tcp(&own, "93.184.216.34", 8080, &[]), Ok(Passage::Free));
    assert_eq!(tcp(&own, "93.184.216.35", 80, &[]), Err(Reason::NotAllowed));
    let exactly = |address: &str, port| own.names_exactly(Transport::Tcp, ip(address), port);
    assert!(exactly("93.184.216.34", 1) && exactly("::ffff:93.184.216.34", 1));
    assert!(!exactly("10.1.2.3", 5432), "a block names no single address");
}

#[test]
fn names_must_be_resolved_and_shown() {
    let own = egress(&["example.org", "*.wild.org:443", "db.org:5432"], &[]);
    let named = |name: &str, opaque| Ok(Passage::Named { names: vec![name.to_owned()], opaque });
    assert_eq!(tcp(&own, "1.1.1.1", 443, &[]), Err(Reason::NotAllowed), "an address that nobody resolved");
    assert_eq!(tcp(&own, "1.1.1.1", 443, &["example.org", "other.org"]), named("example.org", false));
    assert_eq!(tcp(&own, "1.1.1.1", 22, &["example.org"]), named("example.org", false));
    assert_eq!(tcp(&own, "1.1.1.1", 443, &["a.b.wild.org"]), named("a.b.wild.org", false));
    assert_eq!(tcp(&own, "1.1.1.1", 80, &["a.wild.org"]), Err(Reason::NotAllowed));
    assert_eq!(tcp(&own, "1.1.1.1", 5432, &["db.org"]), named("db.org", true));
    assert_eq!(own.resolve("wild.org"), Err(Reason::NotAllowed));
    assert_eq!(own.resolve("evilwild.org"), Err(Reason::NotAllowed));
    assert_eq!(own.resolve("example.org.evil.org"), Err(Reason::NotAllowed));
    assert_eq!(own.resolve("a.wild.org"), Ok(()));
    assert_eq!(own.resolve("db.org"), Ok(()));
}

#[test]
fn what_is_denied_stays_denied() {
    let own = egress(
        &["*.example.org", "10.0.0.0/8", "example.org"],
        &["secret.example.org", "10.9.0.0/16", "example.org:25"],
    );
    assert_eq!(own.resolve("secret.example.org"), Err(Reason::Denied));
    assert_eq!(tcp(&own, "10.9.1.1", 80, &[]), Err(Reason::Denied));
    assert_eq!(tcp(&own, "10.8.1.1", 80, &[]), Ok(Passage::Free), "the control");
    assert_eq!(tcp(&own, "1.1.1.1", 443, &["secret.example.org"]), Err(Reason::Denied));
    let denied = full(&["shared.org:22"]);
    assert_eq!(tcp(&denied, "1.1.1.1", 22, &["shared.org"]), Err(Reason::Denied));
    assert_eq!(
        tcp(&denied, "1.1.1.1", 22, &["shared.org", "other.org"]),
        Ok(Passage::Free),
        "or it is the other"
    );
    assert_eq!(tcp(&denied, "1.1.1.1", 80, &["shared.org"]), Ok(Passage::Free), "the control");
    assert_eq!(own.show("secret.example.org", 443), Err(Reason::Denied));
    assert_eq!(own.show("example.org", 25), Err(Reason::Denied));
    assert_eq!(own.show("example.org", 80), Ok(()));
    assert_eq!(full(&["evil.org"]).resolve("evil.org"), Err(Reason::Denied));
    assert_eq!(full(&["9.9.9.9"]).connect(Transport::Udp, ip("9.9.9.9"), 53, &[]), Err(Reason::Denied));
    assert!(full(&["evil.org"]).refuses_names() && !full(&["9.9.9.9"]).refuses_names());
}

#[test]
fn datagrams_need_an_address_or_a_port_and_quic_is_off() {
    let own = egress(&["example.org", "time.org:123", "9.9.9.9"], &[]);
    let udp = |egress: &Egress, port, resolved: &[&str]| {
        egress.connect(Transport::Udp, ip("1.1.1.1"), port, resolved)
    };
    assert_eq!(udp(&own, 123, &["example.org"]), Err(Reason::NotAllowed));
    assert!(udp(&own, 123, &["time.org"]).is_ok());
    assert_eq!(udp(&full(&[]), 443, &[]), Err(Reason::Quic));
    assert_eq!(own.connect(Transport::Udp, ip("9.9.9.9"), 443, &[]), Err(Reason::Quic));
    assert_eq!(own.connect(Transport::Udp, ip("9.9.9.9"), 53, &[]), Ok(Passage::Free), "the control");
}

#[test]
fn quic_passes_where_a_rule_for_datagrams_names_its_port() {
    let own = egress(
        &[
            "quic.org:443/udp",
            "*.wild.org:1-65535/udp",
            "9.9.9.0/24:443/udp",
            "9.9.9.9:443",
            "10.0.0.1:443/udp",
        ],
        &["denied.wild.org:443/udp", "off.wild.org:443"],
    );
    let udp = |address: &str, resolved: &[&str]| own.connect(Transport::Udp, ip(address), 443, resolved);
    for name in ["quic.org", "a.wild.org"] {
        let passage = Passage::Named { names: vec![name.to_owned()], opaque: true };
        assert_eq!(udp("1.1.1.1", &[name]), Ok(passage), "{name}");
        assert_eq!(
            tcp(&own, "1.1.1.1", 443, &[name]),
            Err(Reason::NotAllowed),
            "{name}: nothing but datagrams"
        );
    }
    assert_eq!(udp("9.9.9.9", &[]), Ok(Passage::Free));
    assert_eq!(udp("10.0.0.1", &[]), Ok(Passage::Free), "named by address");
    assert_eq!(udp("1.1.1.1", &["other.org"]), Err(Reason::Quic));
    assert_eq!(udp("1.1.1.1", &[]), Err(Reason::Quic));
    assert_eq!(udp("1.1.1.1", &["denied.wild.org"]), Err(Reason::Denied));
    assert_eq!(udp("1.1.1.1", &["off.wild.org"]), Err(Reason::Denied), "to deny a port is to deny all of it");
    assert_eq!(own.show("denied.wild.org", 443), Ok(()), "the control: only its datagrams are denied");
    let own_host = egress(&["9.9.9.0/24", "9.9.9.9:80/tcp"], &[]);
    assert!(own_host.names_exactly(Transport::Tcp, ip("9.9.9.9"), 80));
    assert!(!own_host.names_exactly(Transport::Udp, ip("9.9.9.9"), 80));
    // Whoever may be anywhere gets no QUIC by that.
    let wide = egress(&["0.0.0.0/0:443", "quic.org", "quic.org:443", "quic.org:443/tcp"], &[]);
    assert_eq!(wide.connect(Transport::Udp, ip("1.1.1.1"), 443, &["quic.org"]), Err(Reason::Quic));
    let private = egress(&["0.0.0.0/0:443/udp", "evil.org:443/udp"], &[]);
    assert_eq!(
        private.connect(Transport::Udp, ip("10.0.0.1"), 443, &["evil.org"]),
        Err(Reason::Special(Class::Private))
    );
    assert_eq!(private.connect(Transport::Udp, ip("1.1.1.1"), 443, &[]), Ok(Passage::Free), "the control");
}

#[test]
fn a_rule_covers_what_is_narrower() {
    let covers = |wide: &str, narrow: &str| Rule::parse(wide).unwrap().covers(&Rule::parse(narrow).unwrap());
    assert!(covers("example.org", "example.org:443"));
    assert!(covers("*.example.org:1-1024", "a.example.org:443"));
    assert!(covers("*.example.org", "*.a.example.org"));
    assert!(covers("10.0.0.0/8", "10.1.0.0/16:5432"));
    assert!(covers("0.0.0.0/0", "93.184.216.0/24"));
    assert!(covers("example.org:443/udp", "example.org:443/udp"));
    assert!(covers("example.org:5000", "example.org:5000/udp"));
    assert!(covers("example.org", "example.org:443/tcp"));
    assert!(covers("10.0.0.0/8", "10.1.0.0/16:53/udp"));
    for (wide, narrow) in [
        ("example.org:443", "example.org"),
        // There, it need not show its name.
        ("example.org", "example.org:5432"),
        ("example.org", "example.org:1-79"),
        ("example.org", "example.org:80-443"),
        ("*.example.org", "example.org"),
        ("example.org", "*.example.org"),
        ("*.a.example.org", "*.example.org"),
        ("10.1.0.0/16", "10.0.0.0/8"),
        ("0.0.0.0/0", "10.0.0.1"),
        ("*.example.org", "1.1.1.1"),
        ("0.0.0.0/0", "::/0"),
        // QUIC, and what no name has to be shown for.
        ("example.org:443", "example.org:443/udp"),
        ("example.org", "example.org:443/udp"),
        ("example.org", "example.org:5000/udp"),
        ("example.org:1-1000", "example.org:80/udp"),
        ("10.0.0.0/8", "10.1.0.0/16:400-500/udp"),
        ("example.org:443/udp", "example.org:443"),
        ("example.org:443/udp", "example.org:443/tcp"),
        ("example.org:443/tcp", "example.org:443"),
    ] {
        assert!(!covers(wide, narrow), "{wide} {narrow}");
    }
}

proptest! {
    #[test]
    fn no_text_makes_a_rule_panic_and_every_rule_reads_back(text in "[a-z0-9*:./\\[\\]-]{0,40}") {
        if let Ok(rule) = Rule::parse(&text) {
            prop_assert_eq!(Rule::parse(&rule.to_string()).unwrap(), rule);
        }
    }

    #[test]
    fn a_mapped_address_is_judged_as_the_address_in_it(bits: u32, port in 1u16.., name in "[a-z]{1,5}\\.org") {
        let plain = Ipv4Addr::from_bits(bits);
        let own = egress(&["example.org", "10.0.0.0/8", "0.0.0.0/0:80"], &["1.0.0.0/8"]);
        for egress in [own, full(&["2.0.0.0/7"])] {
            let judge = |address| egress.connect(Transport::Tcp, address, port, &[&name]);
            prop_assert_eq!(judge(plain.into()), judge(plain.to_ipv6_mapped().into()));
        }
    }

    #[test]
    fn nothing_but_public_addresses_is_in_the_public_internet(bits: u128, port in 1u16..) {
        let address = Ipv6Addr::from_bits(bits);
        let allowed = full(&[]).connect(Transport::Tcp, address.into(), port, &[]).is_ok();
        prop_assert_eq!(allowed, Class::of(address.into()).is_none());
        prop_assert!(!allowed || (0x2000..0x4000).contains(&address.segments()[0]) || address.to_ipv4_mapped().is_some());
    }

    #[test]
    fn no_name_makes_a_special_address_reachable(bits: u32, name in "[a-z]{1,5}\\.org") {
        let address = IpAddr::from(Ipv4Addr::from_bits(bits));
        let rule = Rule::parse(&name).unwrap();
        let own = Egress::from_rules(Some(vec![rule]), Vec::new());
        let judged = own.connect(Transport::Tcp, address, 80, &[&name]);
        prop_assert_eq!(judged.is_ok(), Class::of(address).is_none());
    }
}
