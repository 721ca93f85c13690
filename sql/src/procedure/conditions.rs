//! Condition names in handlers and RAISE: PostgreSQL's appendix A.

use pangea_core::txn::SqlState;

/// SQLSTATEs by condition name, sorted by name.
#[rustfmt::skip]
const CONDITIONS: &[(&str, [u8; 5])] = &[
    ("active_sql_transaction", *b"25001"),
    ("admin_shutdown", *b"57P01"),
    ("ambiguous_alias", *b"42P09"),
    ("ambiguous_column", *b"42702"),
    ("ambiguous_function", *b"42725"),
    ("ambiguous_parameter", *b"42P08"),
    ("array_subscript_error", *b"2202E"),
    ("assert_failure", *b"P0004"),
    ("bad_copy_file_format", *b"22P04"),
    ("cannot_coerce", *b"42846"),
    ("cannot_connect_now", *b"57P03"),
    ("cant_change_runtime_param", *b"55P02"),
    ("cardinality_violation", *b"21000"),
    ("case_not_found", *b"20000"),
    ("character_not_in_repertoire", *b"22021"),
    ("check_violation", *b"23514"),
    ("collation_mismatch", *b"42P21"),
    ("configuration_limit_exceeded", *b"53400"),
    ("connection_does_not_exist", *b"08003"),
    ("connection_exception", *b"08000"),
    ("connection_failure", *b"08006"),
    ("crash_shutdown", *b"57P02"),
    ("data_corrupted", *b"XX001"),
    ("data_exception", *b"22000"),
    ("database_dropped", *b"57P04"),
    ("datatype_mismatch", *b"42804"),
    ("datetime_field_overflow", *b"22008"),
    ("deadlock_detected", *b"40P01"),
    ("dependent_objects_still_exist", *b"2BP01"),
    ("dependent_privilege_descriptors_still_exist", *b"2B000"),
    ("diagnostics_exception", *b"0Z000"),
    ("disk_full", *b"53100"),
    ("division_by_zero", *b"22012"),
    ("duplicate_alias", *b"42712"),
    ("duplicate_column", *b"42701"),
    ("duplicate_cursor", *b"42P03"),
    ("duplicate_database", *b"42P04"),
    ("duplicate_function", *b"42723"),
    ("duplicate_json_object_key_value", *b"22030"),
    ("duplicate_object", *b"42710"),
    ("duplicate_prepared_statement", *b"42P05"),
    ("duplicate_schema", *b"42P06"),
    ("duplicate_table", *b"42P07"),
    ("error_in_assignment", *b"22005"),
    ("escape_character_conflict", *b"2200B"),
    ("exclusion_violation", *b"23P01"),
    ("external_routine_exception", *b"38000"),
    ("feature_not_supported", *b"0A000"),
    ("floating_point_exception", *b"22P01"),
    ("foreign_key_violation", *b"23503"),
    ("function_executed_no_return_statement", *b"2F005"),
    ("generated_always", *b"428C9"),
    ("grouping_error", *b"42803"),
    ("in_failed_sql_transaction", *b"25P02"),
    ("indeterminate_collation", *b"42P22"),
    ("indeterminate_datatype", *b"42P18"),
    ("index_corrupted", *b"XX002"),
    ("indicator_overflow", *b"22022"),
    ("insufficient_privilege", *b"42501"),
    ("insufficient_resources", *b"53000"),
    ("integrity_constraint_violation", *b"23000"),
    ("internal_error", *b"XX000"),
    ("interval_field_overflow", *b"22015"),
    ("invalid_argument_for_logarithm", *b"2201E"),
    ("invalid_argument_for_power_function", *b"2201F"),
    ("invalid_argument_for_width_bucket_function", *b"2201G"),
    ("invalid_authorization_specification", *b"28000"),
    ("invalid_binary_representation", *b"22P03"),
    ("invalid_catalog_name", *b"3D000"),
    ("invalid_character_value_for_cast", *b"22018"),
    ("invalid_column_definition", *b"42611"),
    ("invalid_column_reference", *b"42P10"),
    ("invalid_cursor_definition", *b"42P11"),
    ("invalid_cursor_name", *b"34000"),
    ("invalid_cursor_state", *b"24000"),
    ("invalid_database_definition", *b"42P12"),
    ("invalid_datetime_format", *b"22007"),
    ("invalid_escape_character", *b"22019"),
    ("invalid_escape_sequence", *b"22025"),
    ("invalid_foreign_key", *b"42830"),
    ("invalid_function_definition", *b"42P13"),
    ("invalid_grantor", *b"0L000"),
    ("invalid_json_text", *b"22032"),
    ("invalid_name", *b"42602"),
    ("invalid_object_definition", *b"42P17"),
    ("invalid_parameter_value", *b"22023"),
    ("invalid_password", *b"28P01"),
    ("invalid_prepared_statement_definition", *b"42P14"),
    ("invalid_recursion", *b"42P19"),
    ("invalid_regular_expression", *b"2201B"),
    ("invalid_role_specification", *b"0P000"),
    ("invalid_row_count_in_limit_clause", *b"2201W"),
    ("invalid_row_count_in_result_offset_clause", *b"2201X"),
    ("invalid_savepoint_specification", *b"3B001"),
    ("invalid_schema_definition", *b"42P15"),
    ("invalid_schema_name", *b"3F000"),
    ("invalid_sql_statement_name", *b"26000"),
    ("invalid_table_definition", *b"42P16"),
    ("invalid_text_representation", *b"22P02"),
    ("invalid_time_zone_displacement_value", *b"22009"),
    ("invalid_transaction_initiation", *b"0B000"),
    ("invalid_transaction_state", *b"25000"),
    ("invalid_transaction_termination", *b"2D000"),
    ("io_error", *b"58030"),
    ("locator_exception", *b"0F000"),
    ("lock_not_available", *b"55P03"),
    ("modifying_sql_data_not_permitted", *b"2F002"),
    ("most_specific_type_mismatch", *b"2200G"),
    ("name_too_long", *b"42622"),
    ("no_active_sql_transaction", *b"25P01"),
    ("no_data_found", *b"P0002"),
    ("not_null_violation", *b"23502"),
    ("null_value_not_allowed", *b"22004"),
    ("numeric_value_out_of_range", *b"22003"),
    ("object_in_use", *b"55006"),
    ("object_not_in_prerequisite_state", *b"55000"),
    ("operator_intervention", *b"57000"),
    ("out_of_memory", *b"53200"),
    ("plpgsql_error", *b"P0000"),
    ("program_limit_exceeded", *b"54000"),
    ("prohibited_sql_statement_attempted", *b"2F003"),
    ("protocol_violation", *b"08P01"),
    ("query_canceled", *b"57014"),
    ("raise_exception", *b"P0001"),
    ("read_only_sql_transaction", *b"25006"),
    ("reading_sql_data_not_permitted", *b"2F004"),
    ("reserved_name", *b"42939"),
    ("restrict_violation", *b"23001"),
    ("savepoint_exception", *b"3B000"),
    ("sequence_generator_limit_exceeded", *b"2200H"),
    ("serialization_failure", *b"40001"),
    ("snapshot_too_old", *b"72000"),
    ("sql_routine_exception", *b"2F000"),
    ("sql_statement_not_yet_complete", *b"03000"),
    ("stacked_diagnostics_accessed_without_active_handler", *b"0Z002"),
    ("statement_completion_unknown", *b"40003"),
    ("statement_too_complex", *b"54001"),
    ("string_data_length_mismatch", *b"22026"),
    ("string_data_right_truncation", *b"22001"),
    ("substring_error", *b"22011"),
    ("syntax_error", *b"42601"),
    ("syntax_error_or_access_rule_violation", *b"42000"),
    ("system_error", *b"58000"),
    ("too_many_arguments", *b"54023"),
    ("too_many_columns", *b"54011"),
    ("too_many_connections", *b"53300"),
    ("too_many_rows", *b"P0003"),
    ("transaction_integrity_constraint_violation", *b"40002"),
    ("transaction_rollback", *b"40000"),
    ("triggered_action_exception", *b"09000"),
    ("triggered_data_change_violation", *b"27000"),
    ("trim_error", *b"22027"),
    ("undefined_column", *b"42703"),
    ("undefined_function", *b"42883"),
    ("undefined_object", *b"42704"),
    ("undefined_parameter", *b"42P02"),
    ("undefined_table", *b"42P01"),
    ("unique_violation", *b"23505"),
    ("unterminated_c_string", *b"22024"),
    ("untranslatable_character", *b"22P05"),
    ("windowing_error", *b"42P20"),
    ("with_check_option_violation", *b"44000"),
    ("wrong_object_type", *b"42809"),
    ("zero_length_character_string", *b"2200F"),
];

/// Returns the SQLSTATE of a condition name.
pub(super) fn code_of(name: &str) -> Option<SqlState> {
    let found = CONDITIONS.binary_search_by_key(&name, |(name, _)| name);
    found.ok().map(|at| SqlState(CONDITIONS[at].1))
}

/// Parses an SQLSTATE: five digits and capital letters.
pub(super) fn state(text: &str) -> Option<SqlState> {
    let is_right = |byte: &u8| byte.is_ascii_digit() || byte.is_ascii_uppercase();
    let bytes: [u8; 5] = text.as_bytes().try_into().ok()?;
    bytes.iter().all(is_right).then_some(SqlState(bytes))
}

/// Whether an error matches a condition. A condition that ends in `000` matches its whole class.
pub(super) fn is_of(error: SqlState, condition: SqlState) -> bool {
    error == condition || (condition.0.ends_with(b"000") && error.0[..2] == condition.0[..2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_found_by_name_and_classes_hold_their_codes() {
        assert!(CONDITIONS.is_sorted_by_key(|(name, _)| name));
        assert_eq!(code_of("unique_violation"), Some(SqlState(*b"23505")));
        assert_eq!(code_of("others"), None);
        assert_eq!(
            (state("22012"), state("2201"), state("2201a")),
            (Some(SqlState(*b"22012")), None, None)
        );
        assert!(is_of(SqlState(*b"23505"), SqlState(*b"23000")));
        assert!(!is_of(SqlState(*b"23505"), SqlState(*b"22000")));
    }
}
