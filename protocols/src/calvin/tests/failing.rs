//! An epoch that fails.

use pangea_core::protocol::Cx;

use super::*;
use crate::inputs::{attempt, outcome_unknown};

/// An epoch fails after its clients were answered and its record was passed to the log. A restart
/// would replay it, and skip_epochs could not abort what was acknowledged.
#[test]
fn nothing_of_an_epoch_that_failed_gets_out() {
    let (mut node, _) = Node::start(Vec::new(), "append", &Options::default());
    node.append(&[b"a"]);
    let records = node.log.len();
    let answer = |cx: &mut Cx<'_, Calvin>, ticket| {
        cx.persist(vec![Bytes::from_static(b"a record")]);
        cx.reply(Ticket(ticket), Outcome::Aborted(outcome_unknown()));
    };
    let did = node.act(|calvin, cx| {
        answer(cx, 1);
        let done = attempt(cx, |cx| {
            answer(cx, 2);
            panic!("a bug");
        });
        calvin.state.inputs.note_attempt(cx, SnapshotVersion(2), done);
    });
    assert!(did.stopped.expect("the node stops").contains("can't apply epoch 2: a bug"));
    assert_eq!(did.replies.len(), 1, "the earlier epoch counts");
    assert_eq!(node.log.len(), records + 1);
}
