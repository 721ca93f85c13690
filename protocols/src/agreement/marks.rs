//! Coverage marks of agreement.

use pangea_core::protocol::Mark;

use crate::marks::{NONSENSE, mark};

/// All marks of this component.
pub(crate) const ALL: &[Mark] = &[
    mark("agreement.leader_changed", "a replica learns of another leader"),
    mark("agreement.out_of_place", "a message of agreement continues a log that was replaced")
        .rare("an answer arrives after a change of leaders"),
    mark("agreement.refused_malformed", "a message of agreement can't be decoded").never(NONSENSE),
    mark("agreement.refused_name", "a message of agreement names another sender").never(NONSENSE),
    mark("agreement.refused_ballot", "a message of agreement has a ballot that does not exist")
        .never(NONSENSE),
    mark("agreement.refused_index", "a message of agreement has an index that does not exist")
        .never(NONSENSE),
    mark(
        "agreement.refused_entry",
        "a message of agreement contains a cut that no replica proposes",
    )
    .never(NONSENSE),
    mark("agreement.refused_unused", "a message of agreement is of a kind that is not used")
        .never(NONSENSE),
];
