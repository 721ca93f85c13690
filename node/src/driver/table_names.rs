//! Names of tables in the message of a node that stops: protocols know tables by number only.

use pangea_core::ids::TableId;
use pangea_core::store::Store;
use pangea_sql::catalog::describe_tables;

/// Adds the names of the tables that a message has by number.
pub(super) fn with_table_names(store: &Store, mut message: String) -> String {
    let names = describe_tables(store, &tables_in(&message));
    if !names.is_empty() {
        message = format!("{message}. Table {}", names.join(", "));
    }
    message
}

/// The numbers of tables in a message: `in table 5`, or `in tables 5, 7`.
fn tables_in(message: &str) -> Vec<TableId> {
    let after = |words| message.split_once(words).map(|(_, rest)| rest);
    let Some(rest) = after(" in table ").or_else(|| after(" in tables ")) else {
        return Vec::new();
    };
    let end = rest.find(|it: char| !it.is_ascii_digit() && !", ".contains(it));
    let numbers = rest[..end.unwrap_or(rest.len())].split(", ");
    numbers.filter_map(|number| number.trim().parse().ok().map(TableId)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_found_by_the_words_before_their_numbers() {
        let ids = |numbers: &[u32]| numbers.iter().copied().map(TableId).collect::<Vec<_>>();
        assert_eq!(tables_in("the writes of epoch 9 in table 5. Nodes 1"), ids(&[5]));
        assert_eq!(tables_in("rows as of epoch 9 in tables 5, 1004. Nodes 1, 2"), ids(&[5, 1_004]));
        assert!(tables_in("skip_epochs in the table [minerva]").is_empty());
        assert!(tables_in("no room").is_empty());
        assert_eq!(tables_in("differ in table 7"), ids(&[7]));
    }

    #[test]
    fn a_table_without_a_name_keeps_its_number_alone() {
        let message = "node 1 differs in tables 1, 9";
        let named = "node 1 differs in tables 1, 9. Table 1 is the catalog";
        assert_eq!(with_table_names(&Store::new(), message.to_owned()), named);
        assert_eq!(with_table_names(&Store::new(), "no room".to_owned()), "no room");
    }
}
