//! What a program does with its network, as it happens.

use belljar_core::egress::{NetworkEvent, NetworkStep};
use serde::{Deserialize, Serialize};

use crate::{ToSchema, Word};

/// Something that happened to a connection of the program, or to several that differ in nothing but numbers. The name is the
/// program's own choice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkActivity {
    /// The name, or the address.
    pub host: String,
    /// The port, or `null` if a name was only looked up.
    #[schema(required = true)]
    pub port: Option<u16>,
    /// What happened.
    #[schema(value_type = crate::schema::NetworkAction)]
    pub action: Word,
    /// Why it was refused. Only if the action is `refused`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
    /// Bytes that the program sent. Only if the action is `closed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub up_bytes: Option<u64>,
    /// Bytes that the program received. Only if the action is `closed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub down_bytes: Option<u64>,
    /// How many times it happened, if it happened more often than can be told.
    pub count: u64,
}

impl From<NetworkEvent> for NetworkActivity {
    fn from(event: NetworkEvent) -> NetworkActivity {
        let NetworkEvent { host, port, step, count } = event;
        let (action, reason, bytes) = match step {
            NetworkStep::Allowed => ("allowed", None, None),
            NetworkStep::Refused(reason) => ("refused", Some(reason), None),
            NetworkStep::Failed => ("failed", None, None),
            NetworkStep::Closed { up, down } => ("closed", None, Some((up, down))),
            NetworkStep::Omitted => ("omitted", None, None),
        };
        let (up_bytes, down_bytes) = bytes.unzip();
        NetworkActivity { host, port, action: action.into(), reason, up_bytes, down_bytes, count }
    }
}

impl From<NetworkActivity> for NetworkEvent {
    /// What another version may have told besides is something that is not told here.
    fn from(activity: NetworkActivity) -> NetworkEvent {
        let NetworkActivity { host, port, action, reason, up_bytes, down_bytes, count } = activity;
        let step = match &*action {
            "allowed" => NetworkStep::Allowed,
            "refused" => NetworkStep::Refused(reason.unwrap_or_default()),
            "failed" => NetworkStep::Failed,
            "closed" => {
                NetworkStep::Closed { up: up_bytes.unwrap_or_default(), down: down_bytes.unwrap_or_default() }
            }
            _ => NetworkStep::Omitted,
        };
        NetworkEvent { host, port, step, count }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_reads_back_from_its_json() {
        let steps = [
            NetworkStep::Allowed,
            NetworkStep::Refused("not allowed".to_owned()),
            NetworkStep::Failed,
            NetworkStep::Closed { up: 0, down: 7 },
            NetworkStep::Omitted,
        ];
        for step in steps {
            let event = NetworkEvent { host: "a.org".to_owned(), port: Some(443), step, count: 2 };
            let json = crate::to_json(&NetworkActivity::from(event.clone()));
            let read: NetworkActivity = crate::from_json(json.as_bytes()).unwrap();
            assert_eq!(NetworkEvent::from(read), event);
        }
        let newer = br#"{"host": "a", "port": null, "action": "new", "count": 1, "more": true}"#;
        let read: NetworkActivity = crate::from_json(newer).unwrap();
        assert_eq!(NetworkEvent::from(read).step, NetworkStep::Omitted);
    }

    #[test]
    fn only_what_is_known_is_told() {
        let event = NetworkEvent {
            host: "a.org".to_owned(),
            port: None,
            step: NetworkStep::Refused("not allowed".to_owned()),
            count: 1,
        };
        insta::assert_snapshot!(crate::to_json(&NetworkActivity::from(event)), @r#"
        {
          "host": "a.org",
          "port": null,
          "action": "refused",
          "reason": "not allowed",
          "count": 1
        }
        "#);
    }
}
