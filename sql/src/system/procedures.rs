//! Procedures in the catalog.

use super::names::type_named;
use super::tables::{Rows, int, text};
use super::types::{self, INTERNAL};
use super::{BOOTSTRAP_ROLE, PG_CATALOG, SystemCatalog, stored};
use crate::catalog::procedure::{Language, Mode, Parameter, Procedure};
use crate::error::{SqlError, code};
use crate::syntax::quoted_ident;
use crate::types::datum::Datum;

/// OIDs of `sql` and `plpgsql` in `pg_language`.
pub(super) const SQL: u32 = 14;
pub(super) const PLPGSQL: u32 = 13_600;
/// OIDs of `void` and `record` in `pg_type`.
const VOID: u32 = 2_278;
const RECORD: u32 = 2_249;

fn language(procedure: &Procedure) -> u32 {
    match procedure.language {
        Language::Sql => SQL,
        Language::PlPgSql => PLPGSQL,
    }
}

fn mode(parameter: &Parameter) -> (&'static str, &'static str) {
    match parameter.mode {
        Mode::In => ("i", "IN"),
        Mode::Out => ("o", "OUT"),
        Mode::InOut => ("b", "INOUT"),
    }
}

/// Formats parameters: `IN a integer DEFAULT 1, ..`.
fn parameters(procedure: &Procedure, has_defaults: bool) -> String {
    let shown = procedure.parameters.iter().map(|parameter| {
        let mut shown = mode(parameter).1.to_owned();
        if !parameter.name.is_empty() {
            shown.push_str(&format!(" {}", quoted_ident(&parameter.name)));
        }
        shown.push_str(&format!(" {}", parameter.ty.base));
        if let Some(default) = parameter.default.as_ref().filter(|_| has_defaults) {
            shown.push_str(&format!(" DEFAULT {default}"));
        }
        shown
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Returns a dollar quote that does not occur in a text.
fn dollars(text: &str) -> String {
    let mut tag = "procedure".to_owned();
    while text.contains(&format!("${tag}$")) {
        tag.push('x');
    }
    format!("${tag}$")
}

/// Splits a signature into the name and the types in parentheses.
fn with_types(text: &str) -> Result<(&str, Vec<&str>), SqlError> {
    let expected = |what| SqlError::new(code::INVALID_TEXT, format!("expected a {what}"));
    let (mut is_quoted, mut depth, mut begin) = (false, 0, None);
    let mut types = Vec::new();
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            b'(' => {
                depth += 1;
                begin = begin.or(Some((at, at + 1)));
            }
            b')' => depth -= 1,
            b',' if depth == 1 => {
                types.extend(begin.map(|(_, from)| &text[from..at]));
                begin = begin.map(|(open, _)| (open, at + 1));
            }
            _ => {}
        }
    }
    let (open, from) = begin.ok_or_else(|| expected("left parenthesis"))?;
    let last = text[from..].trim_end().strip_suffix(')').filter(|_| depth == 0);
    let last = last.ok_or_else(|| expected("right parenthesis"))?;
    if !types.is_empty() || !last.trim().is_empty() {
        types.push(last);
    }
    Ok((&text[..open], types))
}

impl SystemCatalog {
    /// Parses the signature `name(type, ..)` to its name and the OIDs of its types.
    ///
    /// # Errors
    /// If the text is not a signature, or a type does not exist.
    pub(super) fn signature_named<'a>(
        &self,
        text: &'a str,
    ) -> Result<(&'a str, Vec<u32>), SqlError> {
        let (name, types) = with_types(text)?;
        let numbers = types.into_iter().map(|ty| type_named(ty.trim(), &self.enums));
        Ok((name, numbers.collect::<Result<_, _>>()?))
    }

    /// Returns the procedures of a name in a schema. Without a schema, those in the first schema of
    /// the search path that has any.
    fn procedures_named<'a>(&'a self, schema: Option<u32>, name: &'a str) -> Vec<&'a Procedure> {
        let within = |schema: &str| -> Vec<&Procedure> {
            let is_one = |it: &&Procedure| it.name.name() == name && it.name.schema() == schema;
            self.procedures.iter().filter(is_one).collect()
        };
        match schema {
            Some(schema) => within(self.namespace_name(schema)),
            None => {
                let path = self.path.names().iter();
                path.map(|schema| within(schema)).find(|it| !it.is_empty()).unwrap_or_default()
            }
        }
    }

    /// Returns the OID of the only function of a name.
    ///
    /// # Errors
    /// If there are several.
    pub(super) fn procedure_named(
        &self,
        schema: Option<u32>,
        name: &str,
    ) -> Result<Option<u32>, SqlError> {
        if let (None | Some(PG_CATALOG), Some(oid)) = (schema, types::procedure_named(name)) {
            return Ok(Some(oid));
        }
        match &self.procedures_named(schema, name)[..] {
            [] => Ok(None),
            [one] => Ok(Some(stored(one.id))),
            _ => {
                let message = format!("more than one function named \"{name}\"");
                Err(SqlError::new(code::AMBIGUOUS_FUNCTION, message))
            }
        }
    }

    /// Returns the OID of the function of a name with these argument types.
    pub(super) fn procedure_given(
        &self,
        schema: Option<u32>,
        name: &str,
        types: &[u32],
    ) -> Option<u32> {
        let is_given = |it: &&Procedure| it.identity().iter().map(|ty| ty.oid()).eq(types.to_vec());
        let found = self.procedures_named(schema, name).into_iter().find(is_given);
        found.map(|procedure| stored(procedure.id))
    }

    /// Formats a function so that it can be parsed again: with its schema if the name does not
    /// suffice.
    pub(super) fn procedure_shown(&self, oid: u32, has_types: bool) -> Option<String> {
        if let Some(name) = types::procedure_name(oid) {
            return Some(quoted_ident(name));
        }
        let procedure = self.procedure(oid)?;
        let (schema, name) = (procedure.name.schema(), procedure.name.name());
        let visible = self.procedures_named(None, name);
        let is_found = match has_types {
            true => visible.iter().any(|it| it.id == procedure.id),
            false => matches!(visible[..], [one] if one.id == procedure.id),
        };
        let mut shown = quoted_ident(name);
        if !is_found {
            shown = format!("{}.{shown}", quoted_ident(schema));
        }
        if has_types {
            let types = procedure.identity().into_iter();
            let types: Vec<String> = types.map(|ty| self.format_type(ty.oid(), -1)).collect();
            shown.push_str(&format!("({})", types.join(",")));
        }
        Some(shown)
    }

    fn procedure(&self, oid: u32) -> Option<&Procedure> {
        self.procedures.iter().find(|procedure| stored(procedure.id) == oid)
    }

    /// Returns the parameters of a procedure as declared.
    pub(crate) fn procedure_parameters(&self, oid: u32, has_defaults: bool) -> Option<String> {
        self.procedure(oid).map(|procedure| parameters(procedure, has_defaults))
    }

    /// Returns the statement that creates a procedure.
    pub(crate) fn procedure_definition(&self, oid: u32) -> Option<String> {
        let procedure = self.procedure(oid)?;
        let (name, body) = (quoted_ident(procedure.name.name()), &procedure.body);
        let schema = quoted_ident(procedure.name.schema());
        let (parameters, language) = (parameters(procedure, true), procedure.language.name());
        let dollars = dollars(body);
        Some(format!(
            "CREATE OR REPLACE PROCEDURE {schema}.{name}({parameters})\n LANGUAGE {language}\nAS \
             {dollars}{body}{dollars}\n"
        ))
    }

    pub(super) fn pg_proc(&self, mut rows: Rows) -> Rows {
        for (oid, name) in types::procedures() {
            rows.add(&[
                ("oid", int(oid)),
                ("proname", text(name)),
                ("pronamespace", int(PG_CATALOG)),
                ("proowner", int(BOOTSTRAP_ROLE)),
                ("prolang", int(INTERNAL)),
                ("prokind", text("f")),
                ("proisstrict", Datum::Bool(true)),
                ("provolatile", text("i")),
                ("proparallel", text("s")),
                ("prosrc", text(name)),
            ]);
        }
        for procedure in &self.procedures {
            self.add_procedure(procedure, &mut rows);
        }
        rows
    }

    fn add_procedure(&self, procedure: &Procedure, rows: &mut Rows) {
        let all = &procedure.parameters;
        let array = |values: Vec<Datum>| Datum::array(values);
        let oids = || all.iter().map(|it| int(it.ty.base.oid())).collect();
        let modes = || all.iter().map(|it| text(mode(it).0)).collect();
        let has_names = all.iter().any(|it| !it.name.is_empty());
        let has_modes = all.iter().any(|it| it.mode.is_out());
        let given: Vec<_> = procedure.identity().iter().map(|ty| int(ty.oid())).collect();
        let defaults = all.iter().filter(|it| it.default.is_some()).count();
        let or_null = |is_there: bool, value: Datum| if is_there { value } else { Datum::Null };
        rows.add(&[
            ("oid", int(stored(procedure.id))),
            ("proname", text(procedure.name.name())),
            ("pronamespace", int(self.namespace(procedure.name.schema()).unwrap_or_default())),
            ("proowner", int(self.role_oid(&procedure.owner))),
            ("prolang", int(language(procedure))),
            ("procost", Datum::Float(100.0)),
            ("prokind", text("p")),
            ("provolatile", text("v")),
            ("proparallel", text("u")),
            ("pronargs", int(given.len() as u32)),
            ("pronargdefaults", int(defaults as u32)),
            ("prorettype", int(if has_modes { RECORD } else { VOID })),
            ("proargtypes", array(given)),
            ("proallargtypes", or_null(has_modes, array(oids()))),
            ("proargmodes", or_null(has_modes, array(modes()))),
            ("proargnames", {
                let names = all.iter().map(|it| text(&it.name)).collect();
                or_null(has_names, array(names))
            }),
            ("prosrc", text(&procedure.body)),
        ]);
    }

    pub(super) fn routines(&self, mut rows: Rows, database: &str) -> Rows {
        for procedure in &self.procedures {
            let is_sql = procedure.language == Language::Sql;
            let language = procedure.language.name().to_uppercase();
            rows.add(&[
                ("specific_catalog", text(database)),
                ("specific_schema", text(procedure.name.schema())),
                ("specific_name", text(&specific_name(procedure))),
                ("routine_catalog", text(database)),
                ("routine_schema", text(procedure.name.schema())),
                ("routine_name", text(procedure.name.name())),
                ("routine_type", text("PROCEDURE")),
                ("routine_body", text(if is_sql { "SQL" } else { "EXTERNAL" })),
                ("routine_definition", text(&procedure.body)),
                ("external_language", text(&language)),
                ("parameter_style", text("GENERAL")),
                ("is_deterministic", text("NO")),
                ("sql_data_access", text("MODIFIES")),
                ("schema_level_routine", text("YES")),
                ("max_dynamic_result_sets", int(0u32)),
                ("security_type", text("INVOKER")),
                ("as_locator", text("NO")),
                ("is_udt_dependent", text("NO")),
            ]);
        }
        rows
    }

    pub(super) fn parameters(&self, mut rows: Rows, database: &str) -> Rows {
        for procedure in &self.procedures {
            for (at, parameter) in procedure.parameters.iter().enumerate() {
                let name = Some(&parameter.name).filter(|name| !name.is_empty());
                let default = parameter.default.as_deref();
                rows.add(&[
                    ("specific_catalog", text(database)),
                    ("specific_schema", text(procedure.name.schema())),
                    ("specific_name", text(&specific_name(procedure))),
                    ("ordinal_position", int(at as u32 + 1)),
                    ("parameter_mode", text(mode(parameter).1)),
                    ("is_result", text("NO")),
                    ("as_locator", text("NO")),
                    ("parameter_name", name.map_or(Datum::Null, |name| text(name))),
                    ("data_type", text(&parameter.ty.base.to_string())),
                    ("udt_catalog", text(database)),
                    ("udt_schema", text("pg_catalog")),
                    ("dtd_identifier", text(&(at + 1).to_string())),
                    ("parameter_default", default.map_or(Datum::Null, text)),
                ]);
            }
        }
        rows
    }
}

/// Returns a name that no other procedure has.
fn specific_name(procedure: &Procedure) -> String {
    format!("{}_{}", procedure.name, stored(procedure.id))
}
