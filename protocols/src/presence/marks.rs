//! Coverage marks of presence.

use pangea_core::protocol::Mark;

use crate::marks::{LOST_LOG, NONSENSE, mark};

/// All marks of this component.
pub(crate) const ALL: &[Mark] = &[
    mark("presence.born", "a peer's log identity is recorded for the first time"),
    mark("presence.ready", "a replica starts to take part"),
    mark("presence.malformed_greeting", "a greeting is malformed").never(NONSENSE),
    mark("presence.stranger", "a peer has another log identity than the recorded one")
        .never(LOST_LOG),
    mark("presence.rejoin_asks", "a replica that lost its disk queries its peers"),
    mark("presence.malformed_rejoin", "a rejoin query is malformed").never(NONSENSE),
    mark("presence.malformed_recollection", "an answer to a rejoin query can't be decoded")
        .never(NONSENSE),
    mark(
        "presence.recollection_late",
        "an answer to a rejoin query is a repetition, or is to an earlier query",
    ),
    mark("presence.peer_forgot_too", "a peer answers that it has lost its disk, too")
        .never("simulated runs lose one disk at a time; see protocols/tests/phases"),
    mark("presence.rejoin_knows", "all peers have answered, and enough of them have their disks"),
    mark("presence.before_greeting", "a message waits for the greeting of its sender")
        .rare("a message on the other lane overtakes it"),
    mark(
        "presence.too_much_before_greeting",
        "messages of a peer that has not greeted are dropped",
    )
    .never(NONSENSE),
    mark("presence.stranger_ignored", "a peer with another log identity sends something else")
        .never(LOST_LOG),
    mark("presence.rejoin_answered", "a rejoining peer gets an answer"),
    mark("presence.rejoin_too_early", "a peer's rejoin query arrives before this replica is ready")
        .rare("a node is replaced just after a peer that it queries has started"),
    mark(
        "presence.not_while_rejoining",
        "a message other than an answer reaches a rejoining replica",
    ),
    mark(
        "presence.greeting_late",
        "a greeting arrives after the rejoin answer that was sent later",
    )
    .rare("a large answer overtakes a greeting of the same session"),
];
