//! Functions that read the catalog: names, definitions and privileges of objects.

use super::Env;
use super::signatures::{Signature, of};
use crate::catalog::role::{PRIVILEGES, Privileges};
use crate::error::{SqlError, code};
use crate::expr::functions::Function;
use crate::syntax::quoted;
use crate::system::SystemCatalog;
use crate::types::datum::Datum;
use crate::types::{Reg, SqlType};
use crate::vocabulary::system::{ENCODING, PG_CLASS};
use SqlType::{Bool, Int4, Int8, Name, Oid, Text};

/// A function that reads the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CatalogFunction {
    /// `format_type`
    FormatType,
    /// `pg_get_userbyid`
    RoleName,
    /// `pg_table_is_visible`
    IsVisible,
    /// Always true, if the object exists: types, functions etc. are all in one schema
    Always,
    /// Always false in Pangea
    Never,
    /// Fails, because only a standby of PostgreSQL could answer
    InRecovery,
    /// NULL, because Pangea has no answer
    Nothing,
    /// The empty text, for properties that don't exist in Pangea
    Empty,
    /// `pg_get_expr`; expressions are stored as text
    Expr,
    /// `pg_get_indexdef`, of the index or of one of its columns
    Index,
    /// `pg_get_constraintdef`
    Constraint,
    /// `pg_get_viewdef`
    View,
    /// `pg_get_ruledef`, of the rule for a view's query
    Rule,
    /// `oidvectortypes`
    Types,
    /// `pg_get_functiondef`
    Procedure,
    /// `pg_get_function_arguments`; without defaults, `pg_get_function_identity_arguments`
    Parameters { has_defaults: bool },
    /// `pg_get_serial_sequence`
    SerialSequence,
    /// `obj_description`, with the system catalog if it is given
    ObjectComment,
    /// `col_description`
    ColumnComment,
    /// `pg_encoding_to_char`
    Encoding,
    /// `pg_char_to_encoding`
    EncodingNumber,
    /// `getdatabaseencoding`
    DatabaseEncoding,
    /// `pg_relation_is_publishable`
    IsUserTable,
    /// `pg_relation_is_updatable`, with PostgreSQL's bits
    Updatable,
    /// `pg_column_is_updatable`
    ColumnUpdatable,
    /// `to_regclass` and similar; NULL if the name does not exist
    Find(Reg),
    /// `has_table_privilege` and similar
    HasPrivilege(Of),
    /// `pg_has_role`
    HasRole,
    /// `current_schemas`
    Schemas,
    /// `acldefault`
    DefaultAccess,
    /// `current_schema`
    Schema,
}

/// The kind of object that a privilege is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Of {
    /// A table or a sequence.
    Relation,
    /// A column. It has the privileges of its table. These forms never name the user.
    Column,
    /// A schema.
    Schema,
    /// An object that everybody may use.
    Anything,
}

/// Bits of `pg_relation_is_updatable`.
const UPDATES: i64 = 1 << 2;
const INSERTS: i64 = 1 << 3;
const DELETES: i64 = 1 << 4;

use CatalogFunction as F;

const fn function(function: CatalogFunction) -> Function {
    Function::Catalog(function)
}

const REGCLASS: SqlType = SqlType::Reg(Reg::Class);

/// The signature of a function that tests whether an object is visible without a schema.
const fn visible(name: &'static str) -> Signature {
    of(name, &[Oid], Bool, function(F::Always))
}

/// The forms of a function that tests a privilege.
macro_rules! privilege {
    ($name:literal, $of:expr) => {
        [
            of($name, &[Text, Text], Bool, function(F::HasPrivilege($of))),
            of($name, &[Oid, Text], Bool, function(F::HasPrivilege($of))),
            of($name, &[Name, Text, Text], Bool, function(F::HasPrivilege($of))),
            of($name, &[Name, Oid, Text], Bool, function(F::HasPrivilege($of))),
            of($name, &[Oid, Text, Text], Bool, function(F::HasPrivilege($of))),
            of($name, &[Oid, Oid, Text], Bool, function(F::HasPrivilege($of))),
        ]
    };
}

const TABLE: [Signature; 6] = privilege!("has_table_privilege", Of::Relation);
const SEQUENCE: [Signature; 6] = privilege!("has_sequence_privilege", Of::Relation);
const ANY_COLUMN: [Signature; 6] = privilege!("has_any_column_privilege", Of::Relation);
const SCHEMA: [Signature; 6] = privilege!("has_schema_privilege", Of::Schema);
const DATABASE: [Signature; 6] = privilege!("has_database_privilege", Of::Anything);
const FUNCTION: [Signature; 6] = privilege!("has_function_privilege", Of::Anything);
const TYPE: [Signature; 6] = privilege!("has_type_privilege", Of::Anything);
const LANGUAGE: [Signature; 6] = privilege!("has_language_privilege", Of::Anything);

/// The forms of all functions that test a privilege.
pub(super) const PRIVILEGE_FORMS: [&[Signature]; 8] =
    [&TABLE, &SEQUENCE, &ANY_COLUMN, &SCHEMA, &DATABASE, &FUNCTION, &TYPE, &LANGUAGE];

pub(super) const SIGNATURES: &[Signature] = &[
    of("format_type", &[Oid, Int4], Text, function(F::FormatType)),
    of("pg_get_userbyid", &[Oid], Name, function(F::RoleName)),
    of("pg_table_is_visible", &[Oid], Bool, function(F::IsVisible)),
    visible("pg_type_is_visible"),
    visible("pg_function_is_visible"),
    visible("pg_operator_is_visible"),
    visible("pg_opclass_is_visible"),
    visible("pg_opfamily_is_visible"),
    visible("pg_collation_is_visible"),
    visible("pg_conversion_is_visible"),
    visible("pg_statistics_obj_is_visible"),
    visible("pg_ts_config_is_visible"),
    visible("pg_ts_dict_is_visible"),
    visible("pg_ts_parser_is_visible"),
    visible("pg_ts_template_is_visible"),
    of("pg_get_expr", &[Text, Oid], Text, function(F::Expr)),
    of("pg_get_expr", &[Text, Oid, Bool], Text, function(F::Expr)),
    of("pg_get_indexdef", &[Oid], Text, function(F::Index)),
    of("pg_get_indexdef", &[Oid, Int4, Bool], Text, function(F::Index)),
    of("pg_get_constraintdef", &[Oid], Text, function(F::Constraint)),
    of("pg_get_constraintdef", &[Oid, Bool], Text, function(F::Constraint)),
    of("pg_get_serial_sequence", &[Text, Text], Text, function(F::SerialSequence)),
    of("pg_get_viewdef", &[Text], Text, function(F::View)),
    of("pg_get_viewdef", &[Oid], Text, function(F::View)),
    of("pg_get_viewdef", &[Oid, Bool], Text, function(F::View)),
    of("pg_get_viewdef", &[Oid, Int4], Text, function(F::View)),
    of("pg_get_viewdef", &[Text, Bool], Text, function(F::View)),
    of("pg_get_triggerdef", &[Oid], Text, function(F::Nothing)),
    of("pg_get_triggerdef", &[Oid, Bool], Text, function(F::Nothing)),
    of("pg_get_ruledef", &[Oid], Text, function(F::Rule)),
    of("pg_get_ruledef", &[Oid, Bool], Text, function(F::Rule)),
    of("oidvectortypes", &[SqlType::OidVector], Text, function(F::Types)),
    of("pg_get_partkeydef", &[Oid], Text, function(F::Nothing)),
    of("pg_get_statisticsobjdef_columns", &[Oid], Text, function(F::Nothing)),
    of("pg_get_function_arguments", &[Oid], Text, function(F::Parameters { has_defaults: true })),
    of(
        "pg_get_function_identity_arguments",
        &[Oid],
        Text,
        function(F::Parameters { has_defaults: false }),
    ),
    of("pg_get_function_result", &[Oid], Text, function(F::Nothing)),
    of("pg_get_function_sqlbody", &[Oid], Text, function(F::Nothing)),
    of(
        "acldefault",
        &[SqlType::InternalChar, Oid],
        SqlType::Array(crate::types::Element::TEXT),
        function(F::DefaultAccess),
    ),
    of("pg_get_functiondef", &[Oid], Text, function(F::Procedure)),
    of("obj_description", &[Oid], Text, function(F::ObjectComment)),
    of("obj_description", &[Oid, Name], Text, function(F::ObjectComment)),
    of("shobj_description", &[Oid, Name], Text, function(F::ObjectComment)),
    of("col_description", &[Oid, Int4], Text, function(F::ColumnComment)),
    of("pg_char_to_encoding", &[Name], Int4, function(F::EncodingNumber)),
    of("getdatabaseencoding", &[], Name, function(F::DatabaseEncoding)),
    of("pg_tablespace_location", &[Oid], Text, function(F::Empty)),
    of("pg_encoding_to_char", &[Int4], Name, function(F::Encoding)),
    of("pg_relation_is_updatable", &[REGCLASS, Bool], Int4, function(F::Updatable)),
    of(
        "pg_column_is_updatable",
        &[REGCLASS, SqlType::Int2, Bool],
        Bool,
        function(F::ColumnUpdatable),
    ),
    of("pg_relation_is_publishable", &[REGCLASS], Bool, function(F::IsUserTable)),
    // Sizes of relations are not measured.
    of("pg_relation_size", &[REGCLASS], Int8, function(F::Nothing)),
    of("pg_table_size", &[REGCLASS], Int8, function(F::Nothing)),
    of("pg_indexes_size", &[REGCLASS], Int8, function(F::Nothing)),
    of("pg_total_relation_size", &[REGCLASS], Int8, function(F::Nothing)),
    of("pg_database_size", &[Oid], Int8, function(F::Nothing)),
    of("pg_database_size", &[Name], Int8, function(F::Nothing)),
    of("pg_tablespace_size", &[Oid], Int8, function(F::Nothing)),
    of("pg_tablespace_size", &[Name], Int8, function(F::Nothing)),
    of("pg_stat_get_numscans", &[Oid], Int8, function(F::Nothing)),
    of("pg_stat_get_tuples_returned", &[Oid], Int8, function(F::Nothing)),
    of("pg_stat_get_tuples_fetched", &[Oid], Int8, function(F::Nothing)),
    of("pg_stat_get_tuples_inserted", &[Oid], Int8, function(F::Nothing)),
    of("pg_stat_get_tuples_updated", &[Oid], Int8, function(F::Nothing)),
    of("pg_stat_get_tuples_deleted", &[Oid], Int8, function(F::Nothing)),
    of("pg_stat_get_live_tuples", &[Oid], Int8, function(F::Nothing)),
    of("pg_stat_get_dead_tuples", &[Oid], Int8, function(F::Nothing)),
    of("pg_current_logfile", &[], Text, function(F::Nothing)),
    of("pg_is_in_recovery", &[], Bool, function(F::Never)),
    of("pg_is_wal_replay_paused", &[], Bool, function(F::InRecovery)),
    of("pg_last_wal_receive_lsn", &[], Text, function(F::Nothing)),
    of("pg_last_wal_replay_lsn", &[], Text, function(F::Nothing)),
    of("pg_last_xact_replay_timestamp", &[], SqlType::Timestamptz, function(F::Nothing)),
    of("pg_is_other_temp_schema", &[Oid], Bool, function(F::Never)),
    of("to_regclass", &[Text], REGCLASS, function(F::Find(Reg::Class))),
    of("to_regtype", &[Text], SqlType::Reg(Reg::Type), function(F::Find(Reg::Type))),
    of("to_regnamespace", &[Text], SqlType::Reg(Reg::Namespace), function(F::Find(Reg::Namespace))),
    of("to_regproc", &[Text], SqlType::Reg(Reg::Procedure), function(F::Find(Reg::Procedure))),
    of("to_regprocedure", &[Text], SqlType::Reg(Reg::Signature), function(F::Find(Reg::Signature))),
    of("to_regrole", &[Text], SqlType::Reg(Reg::Role), function(F::Find(Reg::Role))),
    of("has_column_privilege", &[Text, Text, Text], Bool, function(F::HasPrivilege(Of::Column))),
    of("has_column_privilege", &[Oid, Int4, Text], Bool, function(F::HasPrivilege(Of::Column))),
    of("pg_has_role", &[Name, Text], Bool, function(F::HasRole)),
    of("pg_has_role", &[Oid, Text], Bool, function(F::HasRole)),
    of("pg_has_role", &[Name, Name, Text], Bool, function(F::HasRole)),
    of("pg_has_role", &[Name, Oid, Text], Bool, function(F::HasRole)),
    of("current_schema", &[], SqlType::Name, function(F::Schema)),
    of(
        "current_schemas",
        &[Bool],
        SqlType::Array(crate::types::Element::NAME),
        function(F::Schemas),
    ),
];

impl CatalogFunction {
    /// Whether the function handles NULL arguments itself.
    pub(super) fn takes_nulls(self) -> bool {
        self == F::FormatType
    }
}

fn oid(datum: &Datum) -> u32 {
    let Datum::Int(number) = datum else { panic!("{datum:?} is no number") };
    *number as u32
}

fn text(datum: &Datum) -> &str {
    let Datum::Text(text) = datum else { panic!("{datum:?} is no text") };
    text
}

/// Calls a function.
pub(super) fn call(
    function: CatalogFunction,
    args: &[Datum],
    env: &Env,
) -> Result<Datum, SqlError> {
    let catalog = env.catalog()?;
    let shown = |text: Option<String>| Ok(text.map_or(Datum::Null, Datum::Text));
    match function {
        F::FormatType => {
            let modifier = match args[1] {
                Datum::Int(modifier) => modifier as i32,
                _ => -1,
            };
            let is_there = !args[0].is_null();
            shown(is_there.then(|| catalog.format_type(oid(&args[0]), modifier)))
        }
        F::RoleName => Ok(Datum::Text(catalog.role_name(oid(&args[0])))),
        F::IsVisible => Ok(catalog.is_visible(oid(&args[0])).map_or(Datum::Null, Datum::Bool)),
        F::Always => Ok(Datum::Bool(true)),
        F::Never => Ok(Datum::Bool(false)),
        F::InRecovery => Err(not_in_recovery()),
        F::Nothing => Ok(Datum::Null),
        F::Empty => Ok(Datum::Text(String::new())),
        F::Expr => Ok(Datum::Text(catalog.shown_expr(text(&args[0])))),
        F::Types
        | F::Index
        | F::View
        | F::Rule
        | F::Procedure
        | F::Parameters { .. }
        | F::Constraint
        | F::SerialSequence
        | F::ObjectComment
        | F::ColumnComment => said(function, args, catalog),
        F::EncodingNumber => {
            let is_ours = ["utf8", "utf-8", "unicode"].contains(&&*text(&args[0]).to_lowercase());
            Ok(Datum::Int(if is_ours { ENCODING.into() } else { -1 }))
        }
        F::DatabaseEncoding => Ok(Datum::Text("UTF8".to_owned())),
        F::Encoding => {
            let is_ours = oid(&args[0]) == ENCODING;
            Ok(Datum::Text(if is_ours { "UTF8" } else { "" }.to_owned()))
        }
        F::Updatable | F::ColumnUpdatable => Ok(updatable(function, args, catalog)),
        F::IsUserTable => Ok(Datum::Bool(catalog.is_user_table(oid(&args[0])))),
        F::Find(kind) => {
            let found = match catalog.found(kind, text(&args[0])) {
                Err(error) if error.code == code::UNDEFINED_SCHEMA => None,
                found => found?,
            };
            Ok(found.map_or(Datum::Null, |oid| Datum::Int(oid.into())))
        }
        F::HasPrivilege(of) => has_privilege(of, args, catalog, env),
        F::HasRole => {
            let (user, role) = match args {
                [user, role, _] => (text(user).to_owned(), role),
                args => (env.user.to_string(), &args[0]),
            };
            let role = named(role, catalog, env)?;
            Ok(Datum::Bool(catalog.is_superuser(&user, env) || catalog.has_role(&user, &role)))
        }
        F::DefaultAccess => default_access(text(&args[0]), &catalog.role_name(oid(&args[1]))),
        F::Schema => shown(catalog.search_path(false).first().map(|name| (*name).to_owned())),
        F::Schemas => {
            let implicit = args[0] == Datum::Bool(true);
            let names = catalog.search_path(implicit);
            Ok(Datum::array(names.into_iter().map(|name| Datum::Text(name.to_owned())).collect()))
        }
    }
}

/// The error of functions that only a standby of PostgreSQL could answer.
fn not_in_recovery() -> SqlError {
    let hint = "Recovery control functions can only be executed during recovery.";
    SqlError::new(code::NOT_PREREQUISITE, "recovery is not in progress").with_hint(hint)
}

/// `acldefault`: the privileges of PUBLIC and the owner on an object without grants.
fn default_access(kind: &str, owner: &str) -> Result<Datum, SqlError> {
    let items = default_acl(kind, owner);
    items.map(Datum::array).ok_or_else(|| {
        let message = format!("unrecognized objtype abbreviation: {kind}");
        SqlError::new(code::INTERNAL, message)
    })
}

/// Returns whether a relation, or one of its columns, can be written.
fn updatable(function: CatalogFunction, args: &[Datum], catalog: &SystemCatalog) -> Datum {
    let found = catalog.updatable(oid(&args[0]));
    if let (F::ColumnUpdatable, Datum::Int(column)) = (function, &args[1]) {
        let at = usize::try_from(column - 1).ok();
        let is_one = at.and_then(|at| found.columns.get(at)).is_some_and(|it| *it);
        return Datum::Bool(is_one && found.is_deletable);
    }
    let changes = if found.columns.contains(&true) { UPDATES | INSERTS } else { 0 };
    Datum::Int(if found.is_deletable { changes | DELETES } else { 0 })
}

/// Returns a description or definition from the catalog, as text.
fn said(
    function: CatalogFunction,
    args: &[Datum],
    catalog: &SystemCatalog,
) -> Result<Datum, SqlError> {
    let shown = |text: Option<String>| Ok(text.map_or(Datum::Null, Datum::Text));
    match function {
        F::Index => match args.get(1) {
            Some(Datum::Int(column)) if *column != 0 => {
                shown(catalog.index_part(oid(&args[0]), *column))
            }
            _ => shown(catalog.index_definition(oid(&args[0]))),
        },
        F::View => shown(catalog.view_definition(match &args[0] {
            Datum::Text(name) => catalog.number(Reg::Class, name)?,
            number => oid(number),
        })),
        F::Types => {
            let Datum::Array(oids) = &args[0] else { panic!("{:?} is no list", args[0]) };
            let names = oids.items().iter().map(|it| catalog.format_type(oid(it), -1));
            Ok(Datum::Text(names.collect::<Vec<_>>().join(", ")))
        }
        F::Rule => shown(catalog.rule_definition(oid(&args[0]))),
        F::SerialSequence => shown(catalog.serial_sequence(text(&args[0]), text(&args[1]))?),
        F::Procedure => shown(catalog.procedure_definition(oid(&args[0]))),
        F::Parameters { has_defaults } => {
            shown(catalog.procedure_parameters(oid(&args[0]), has_defaults))
        }
        F::Constraint => shown(catalog.constraint_definition(oid(&args[0]))),
        F::ObjectComment => {
            let class = match args.get(1) {
                Some(Datum::Text(name)) => catalog.found(Reg::Class, name)?.unwrap_or_default(),
                _ => PG_CLASS,
            };
            shown(catalog.comment(class, oid(&args[0]), 0).map(str::to_owned))
        }
        F::ColumnComment => {
            let (table, column) = (oid(&args[0]), oid(&args[1]));
            let said = catalog.comment(PG_CLASS, table, column);
            shown(said.map(str::to_owned))
        }
        other => unreachable!("{other:?} says nothing"),
    }
}

/// Returns the name of a role that is given by name or OID.
fn named(role: &Datum, catalog: &SystemCatalog, env: &Env) -> Result<String, SqlError> {
    match role {
        // A user that `trust` authentication admitted may have no role.
        Datum::Text(name) if env.is_trusted && **name == *env.user => Ok(name.clone()),
        Datum::Text(name) => {
            catalog.number(Reg::Role, &crate::syntax::quoted_ident(name))?;
            Ok(name.clone())
        }
        number => Ok(catalog.role_name(oid(number))),
    }
}

/// Whether a user has any of the listed privileges.
fn has_privilege(
    of: Of,
    args: &[Datum],
    catalog: &SystemCatalog,
    env: &Env,
) -> Result<Datum, SqlError> {
    let (wanted, rest) = args.split_last().expect("it has arguments");
    // The user, if given, comes first.
    let (user, object) = match (of, rest) {
        (_, [object]) | (Of::Column, [object, _]) => (env.user.to_string(), object),
        (_, [user, object, ..]) => (named(user, catalog, env)?, object),
        (_, []) => unreachable!("it has arguments"),
    };
    let mut has_any = false;
    for word in text(wanted).split(',') {
        let (privileges, with_option) = privilege(word)?;
        has_any |= match of {
            Of::Anything => true,
            Of::Schema => {
                let number = match object {
                    Datum::Text(name) => catalog.schema_named(name)?,
                    number => oid(number),
                };
                match catalog.may_in_schema(&user, number, (privileges, with_option), env) {
                    Some(may) => may,
                    None => return Ok(Datum::Null),
                }
            }
            Of::Relation | Of::Column => {
                let number = match object {
                    Datum::Text(name) => catalog.number(Reg::Class, name)?,
                    number => oid(number),
                };
                match catalog.may(&user, number, (privileges, with_option), env) {
                    Some(may) => may,
                    None => return Ok(Datum::Null),
                }
            }
        };
    }
    Ok(Datum::Bool(has_any))
}

/// Parses a privilege. Returns it and whether it is WITH GRANT OPTION.
fn privilege(word: &str) -> Result<(Privileges, bool), SqlError> {
    let word = word.trim();
    let upper = word.to_uppercase();
    let (name, with_option) = upper
        .strip_suffix(" WITH GRANT OPTION")
        .map_or((upper.as_str(), false), |name| (name, true));
    // Everybody has these privileges here; they are checked like USAGE.
    let name = match name {
        "EXECUTE" | "CONNECT" | "TEMPORARY" | "TEMP" => "USAGE",
        name => name,
    };
    let found = PRIVILEGES.iter().find(|(known, ..)| *known == name);
    let (.., privileges) = *found.ok_or_else(|| {
        let message = format!("unrecognized privilege type: \"{word}\"");
        SqlError::new(code::INVALID_PARAMETER, message)
    })?;
    Ok((privileges, with_option))
}

/// Returns the access control list of a kind of object before any GRANT. Returns `None` for an
/// unknown kind.
fn default_acl(kind: &str, owner: &str) -> Option<Vec<Datum>> {
    let (everybody, own) = match kind {
        "c" => ("", ""),
        "r" => ("", "arwdDxt"),
        "s" => ("", "rwU"),
        "d" => ("Tc", "CTc"),
        "f" => ("X", "X"),
        "l" | "T" => ("U", "U"),
        "L" => ("", "rw"),
        "n" => ("", "UC"),
        "p" => ("", "sA"),
        "t" => ("", "C"),
        "F" | "S" => ("", "U"),
        _ => return None,
    };
    let owner = quoted(owner);
    let items = [(String::new(), everybody), (owner.clone(), own)].into_iter();
    let given = items.filter(|(_, letters)| !letters.is_empty());
    Some(given.map(|(to, letters)| Datum::Text(format!("{to}={letters}/{owner}"))).collect())
}
