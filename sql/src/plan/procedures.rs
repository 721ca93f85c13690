//! CREATE PROCEDURE, DROP PROCEDURE, CALL and DO.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use pangea_core::hash::HashMap;
use sqlparser::ast;

use super::{DropTarget, Plan, Planner};
use crate::catalog::QualifiedName;
use crate::catalog::procedure::{self, Language, Mode, Parameter, Procedure};
use crate::error::{Failure, SqlError, code};
use crate::expr::bind::{Aggregates, Binder, Bound, Params, Scope};
use crate::expr::cast::{self, Level};
use crate::expr::{Expr, enums};
use crate::procedure::{Body, ProcedureEffects, with_stack};
use crate::search_path::SearchPath;
use crate::syntax::procedures::{Declared, ProcedureStatement};
use crate::syntax::roles::RoleName;
use crate::syntax::{self, Written};
use crate::types::{ColumnType, SqlType};
use crate::vocabulary::column::OutputColumn;

/// PostgreSQL's name for the block of a DO.
const INLINE: &str = "inline_code_block";
/// The maximum number of cached bodies.
const BODIES_MAX: usize = 1_024;

/// Parsed bodies, by the numbers of their procedures.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
    inner: Mutex<HashMap<u32, (Procedure, Arc<Body>)>>,
}

impl Bodies {
    /// Returns the parsed body of a procedure.
    fn of(&self, procedure: &Procedure) -> Result<Arc<Body>, SqlError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, body)) = inner.get(&procedure.id)
            && known == procedure
        {
            return Ok(body.clone());
        }
        let Procedure { name, language, parameters, body, .. } = procedure;
        let read = Arc::new(Body::parse(name.name(), *language, parameters, body)?);
        if inner.len() >= BODIES_MAX {
            inner.clear();
        }
        inner.insert(procedure.id, (procedure.clone(), read.clone()));
        Ok(read)
    }
}

/// The context in which a CALL is planned.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Calls<'a> {
    pub bodies: Option<&'a Arc<Bodies>>,
    /// The schemas in which unqualified names are looked up; `None` for `public`.
    pub path: Option<&'a SearchPath>,
    /// The procedures analyzed so far; `None` while a procedure runs, when no analysis is needed.
    pub seen: Option<&'a Seen>,
}

/// The procedures that a statement may call. Each is analyzed once: its effects count for the
/// statement, wherever it is called.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    procedures: RefCell<BTreeSet<u32>>,
    depth: Cell<usize>,
}

/// The maximum nesting at which procedures are analyzed. A deeper procedure may have any effect.
const DEPTH_MAX: usize = 50;

#[derive(Clone, Debug)]
pub(crate) struct CreateProcedure {
    /// The number and the owner are assigned at run time.
    pub procedure: Procedure,
    pub is_replace: bool,
}

/// DROP PROCEDURE: names, with argument types if they are given.
#[derive(Clone, Debug)]
pub(crate) struct DropProcedures {
    pub named: Vec<(DropTarget, Option<Vec<SqlType>>)>,
    pub if_exists: bool,
}

/// ALTER PROCEDURE .. OWNER TO.
#[derive(Clone, Debug)]
pub(crate) struct OwnProcedure {
    pub meant: DropTarget,
    pub types: Option<Vec<SqlType>>,
    pub owner: RoleName,
}

/// CALL and DO.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub body: Arc<Body>,
    /// The number of the body's variables that are parameters.
    pub parameters: usize,
    /// Initial values of variables, by slot.
    pub arguments: Vec<(usize, Expr)>,
    pub outputs: Vec<Output>,
    pub effects: ProcedureEffects,
    pub bodies: Arc<Bodies>,
    pub is_do: bool,
}

impl Call {
    /// The number of values that it first reserves from each sequence that it draws from.
    pub(crate) const NUMBERS: u64 = 16;
}

/// An output parameter of a procedure.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    pub slot: usize,
    pub ty: ColumnType,
    /// The parameter of the statement that is the argument, if it is one.
    pub argument: Option<usize>,
}

/// A procedure that may be called, with its arguments.
struct Candidate {
    procedure: Procedure,
    /// The argument of each parameter; `None` if it takes its default.
    given: Vec<Option<usize>>,
    /// The number of arguments that have exactly the parameter's type.
    exact: usize,
    /// The parameters with untyped arguments.
    untyped: Vec<usize>,
}

impl Seen {
    /// Returns the procedures analyzed so far.
    pub(super) fn procedures(&self) -> BTreeSet<u32> {
        self.procedures.borrow().clone()
    }

    /// Restores an earlier set of analyzed procedures.
    pub(super) fn set_procedures(&self, then: &BTreeSet<u32>) {
        self.procedures.borrow_mut().clone_from(then);
    }
}

impl Planner<'_> {
    pub(super) fn procedure_statement(
        &mut self,
        statement: &ProcedureStatement,
    ) -> Result<Plan, Failure> {
        let declared = match statement {
            ProcedureStatement::Create(declared) => declared,
            ProcedureStatement::Own { name, types, owner } => {
                let base = |ty| Ok(self.column_type(ty)?.base);
                let types = types.as_ref().map(|all| all.iter().map(base).collect());
                let types: Option<Vec<SqlType>> = types.transpose().map_err(Failure::Sql)?;
                let meant = self.procedure_meant(name.clone(), types.as_deref())?;
                return Ok(Plan::utility(OwnProcedure { meant, types, owner: owner.clone() }));
            }
            ProcedureStatement::Do(body) => {
                if body.language != Language::PlPgSql {
                    let message = "language \"sql\" does not support inline code execution";
                    return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message).into());
                }
                let read = Body::parse(INLINE, body.language, &[], &body.text);
                let body = Arc::new(read.map_err(|error| within(error, body.start))?);
                return self.analyzed(body, None, (Vec::new(), Vec::new()));
            }
        };
        let Declared { name, parameters, types, is_replace, body } = declared;
        let name = &self.new_written(name)?;
        let mut parameters = parameters.clone();
        for (parameter, ty) in parameters.iter_mut().zip(types) {
            // As in PostgreSQL, lengths and scales of parameter types are ignored.
            parameter.ty = self.column_type(ty)?.base.into();
        }
        for parameter in &parameters {
            if let Some(default) = &parameter.default {
                self.default_of(parameter, default)?;
            }
        }
        // The body must parse. Its tables are looked up only when it runs.
        Body::parse(name.name(), body.language, &parameters, &body.text)
            .map_err(|error| within(error, body.start))?;
        let procedure = Procedure {
            id: 0,
            name: name.clone(),
            owner: String::new(),
            language: body.language,
            parameters,
            body: body.text.clone(),
        };
        let is_replace = *is_replace;
        Ok(Plan::utility(CreateProcedure { procedure, is_replace }))
    }

    /// Returns the default of a parameter, for a CALL that omits it.
    fn default_of(&mut self, parameter: &Parameter, text: &str) -> Result<Expr, Failure> {
        let parsed = syntax::parse(&format!("SELECT {text}"));
        let parsed = parsed.map_err(|error| SqlError { position: None, ..error })?;
        let expr = match parsed.first().map(|parsed| &*parsed.ast) {
            Some(ast::Statement::Query(query)) => match &*query.body {
                ast::SetExpr::Select(select) => match &select.projection[..] {
                    [ast::SelectItem::UnnamedExpr(expr)] => Some(expr.clone()),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        };
        let Some(expr) = expr else {
            let message = format!("syntax error at or near \"{text}\"");
            return Err(SqlError::new(code::SYNTAX, message).into());
        };
        let scope = Scope::default();
        self.enum_of(parameter.ty.base)?;
        let mut params = Params::of_text(&self.params.enums);
        let mut binder = Binder {
            source: "",
            scope: &scope,
            params: &mut params,
            aggregates: Aggregates::Forbidden("DEFAULT expressions"),
            outer: &[],
            nested: Vec::new(),
        };
        let bound = binder.bind(&expr)?;
        let bound = binder.cast(bound, parameter.ty, Level::Assignment)?;
        if !params.sequences.is_empty() || params.reads_catalog || !params.types.is_empty() {
            let feature = "a parameter default with a sequence, a parameter or a catalog name";
            return Err(SqlError::unsupported(feature).into());
        }
        Ok(bound.expr)
    }

    pub(super) fn drop_procedures(
        &mut self,
        descriptions: &[ast::FunctionDesc],
        if_exists: bool,
    ) -> Result<Plan, Failure> {
        let named = descriptions.iter().map(|described| {
            let types = described.args.as_ref().map(|args| {
                let given = args.iter().filter(|arg| !matches!(arg.mode, Some(ast::ArgMode::Out)));
                given
                    .map(|arg| Ok(self.column_type(&arg.data_type)?.base))
                    .collect::<Result<Vec<_>, SqlError>>()
            });
            let types = types.transpose()?;
            Ok((self.meant_procedure(&described.name, types.as_deref())?, types))
        });
        let named = named.collect::<Result<Vec<_>, Failure>>()?;
        Ok(Plan::utility(DropProcedures { named, if_exists }))
    }

    /// Returns the procedures that a name may refer to. A procedure hides others with the same
    /// parameters that come later on the path.
    fn procedures_named(&mut self, written: &Written) -> Result<Vec<Procedure>, Failure> {
        if let Some(schema) = &written.schema {
            self.check_schema(schema)?;
        }
        self.uses_schema_of(written);
        let mut found: Vec<Procedure> = Vec::new();
        for name in self.path.candidates(written) {
            for procedure in self.procedures_of(&name)? {
                if !found.iter().any(|known| known.identity() == procedure.identity()) {
                    found.push(procedure);
                }
            }
        }
        Ok(found)
    }

    /// Returns the procedures of a name, on which the plan then depends.
    fn procedures_of(&mut self, name: &QualifiedName) -> Result<Vec<Procedure>, Failure> {
        procedure::find(name, &mut self.cx)
    }

    /// Resolves the procedure in DROP PROCEDURE: in the first schema that has one of the name and
    /// the types.
    fn meant_procedure(
        &mut self,
        object: &ast::ObjectName,
        types: Option<&[SqlType]>,
    ) -> Result<DropTarget, Failure> {
        self.procedure_meant(syntax::table_name(object)?, types)
    }

    fn procedure_meant(
        &mut self,
        written: Written,
        types: Option<&[SqlType]>,
    ) -> Result<DropTarget, Failure> {
        let is_meant = |procedure: &Procedure| types.is_none_or(|types| procedure.is_given(types));
        for name in self.path.candidates(&written) {
            if self.procedures_of(&name)?.iter().any(is_meant) {
                self.uses_schema_of(&written);
                return Ok(DropTarget { name: Ok(name), written });
            }
        }
        self.absent(written)
    }

    pub(super) fn call(
        &mut self,
        call: &ast::Function,
    ) -> Result<(Plan, Vec<OutputColumn>), Failure> {
        let location = syntax::location(&call.name);
        let written = syntax::table_name(&call.name).map_err(|e| self.error_at(e, location))?;
        let args = match &call.args {
            ast::FunctionArguments::List(list) if list.clauses.is_empty() => &list.args[..],
            ast::FunctionArguments::None => &[],
            _ => {
                let feature = "a subquery or a clause as arguments of CALL";
                return Err(SqlError::unsupported(feature).into());
            }
        };
        let (names, exprs) = self.arguments(args)?;
        let scope = Scope::default();
        let mut binder = self.binder(&scope, Aggregates::Forbidden("CALL arguments"), &exprs)?;
        if !binder.nested.is_empty() {
            let message = "cannot use subquery in CALL argument";
            return Err(SqlError::new(code::FEATURE_NOT_SUPPORTED, message).into());
        }
        let bounds: Result<Vec<Bound>, _> = exprs.iter().map(|expr| binder.bind(expr)).collect();
        let bounds = bounds?;
        let procedures = self.procedures_named(&written)?;
        let types: Vec<SqlType> = bounds.iter().map(Bound::base).collect();
        let meant = chosen(&written, procedures, &names, &types);
        let Candidate { procedure, given, .. } = meant.map_err(|e| self.error_at(e, location))?;
        let mut arguments = Vec::new();
        let (mut outputs, mut columns) = (Vec::new(), Vec::new());
        for (slot, (parameter, at)) in procedure.parameters.iter().zip(&given).enumerate() {
            self.enum_of(parameter.ty.base)?;
            let argument = at.and_then(|at| match enums::given(&bounds[at].expr) {
                Expr::Param(parameter) => Some(*parameter),
                _ => None,
            });
            if parameter.mode.is_out() {
                let ty = parameter.ty;
                outputs.push(Output { slot, ty, argument });
                let column = format!("column{}", outputs.len());
                let name = Some(parameter.name.clone()).filter(|name| !name.is_empty());
                columns.push(OutputColumn::new(name.unwrap_or(column), ty));
            }
            let expr = match (at, &parameter.default) {
                // The argument of an OUT parameter is not evaluated.
                (Some(at), _) if parameter.mode == Mode::Out => {
                    self.without_type(&bounds[*at]);
                    continue;
                }
                (Some(at), _) => {
                    let params = &mut self.params;
                    let (source, nested) = (&*self.source, Vec::new());
                    let aggregates = Aggregates::Forbidden("CALL arguments");
                    let scope = &scope;
                    let mut binder =
                        Binder { source, scope, params, aggregates, outer: &[], nested };
                    let ty = parameter.ty;
                    binder.cast(bounds[*at].clone(), ty, Level::Implicit)?.expr
                }
                (None, Some(default)) => self.default_of(parameter, default)?,
                (None, None) => unreachable!("it was chosen for having one"),
            };
            arguments.push((slot, expr));
        }
        let bodies = self.calls.bodies.cloned().unwrap_or_default();
        let body = bodies.of(&procedure)?;
        let plan = self.analyzed(body, Some(&procedure), (arguments, outputs))?;
        Ok((plan, columns))
    }

    /// Gives an untyped parameter of the statement the type text.
    fn without_type(&mut self, bound: &Bound) {
        if let Expr::Param(at) = bound.expr {
            self.params.types[at].get_or_insert(SqlType::Text);
        }
    }

    /// Returns the names of arguments, if given, and their expressions.
    fn arguments<'e>(
        &self,
        args: &'e [ast::FunctionArg],
    ) -> Result<(Vec<Option<String>>, Vec<&'e ast::Expr>), SqlError> {
        let (mut names, mut exprs) = (Vec::new(), Vec::new());
        for arg in args {
            let (name, value) = match arg {
                ast::FunctionArg::Unnamed(value) => (None, value),
                ast::FunctionArg::Named { name, arg, .. } => (Some(syntax::name(name)), arg),
                ast::FunctionArg::ExprNamed { name: ast::Expr::Identifier(name), arg, .. } => {
                    (Some(syntax::name(name)), arg)
                }
                ast::FunctionArg::ExprNamed { .. } => {
                    return Err(SqlError::unsupported(format!("the CALL argument {arg}")));
                }
            };
            let ast::FunctionArgExpr::Expr(expr) = value else {
                return Err(SqlError::unsupported(format!("the CALL argument {arg}")));
            };
            if name.is_none() && names.iter().any(Option::is_some) {
                let message = "positional argument cannot follow named argument";
                let error = SqlError::new(code::SYNTAX, message);
                return Err(error.at(&self.source, syntax::expr_location(expr)));
            }
            names.push(name);
            exprs.push(expr);
        }
        Ok((names, exprs))
    }

    /// Returns a CALL or DO with its possible effects.
    fn analyzed(
        &mut self,
        body: Arc<Body>,
        procedure: Option<&Procedure>,
        (arguments, outputs): (Vec<(usize, Expr)>, Vec<Output>),
    ) -> Result<Plan, Failure> {
        let bodies = self.calls.bodies.cloned().unwrap_or_default();
        let mut effects = ProcedureEffects::default();
        if let Some(seen) = self.calls.seen
            && procedure.is_none_or(|it| seen.procedures.borrow_mut().insert(it.id))
        {
            let depth = seen.depth.get();
            if depth >= DEPTH_MAX {
                effects = ProcedureEffects::unknown();
            } else {
                seen.depth.set(depth + 1);
                let path = Some(&self.path);
                let calls = Calls { bodies: Some(&bodies), path, seen: Some(seen) };
                effects = with_stack(|| ProcedureEffects::of(&body, calls, &mut self.cx))?;
                seen.depth.set(depth);
            }
        }
        self.params.sets_sequences |= effects.sets_sequences;
        self.params.reads_node |= effects.reads_node;
        let parameters = procedure.map_or(0, |procedure| procedure.parameters.len());
        let is_do = procedure.is_none();
        let call = Call { body, parameters, arguments, outputs, effects, bodies, is_do };
        Ok(Plan::Call(Box::new(call)))
    }
}

/// Shifts the position of an error in a body to its position in the statement.
fn within(error: SqlError, start: Option<usize>) -> SqlError {
    let position = start.zip(error.position).map(|(start, at)| start as u32 + at);
    SqlError { position, ..error }
}

/// Returns the procedure that a CALL refers to.
fn chosen(
    name: &Written,
    procedures: Vec<Procedure>,
    names: &[Option<String>],
    types: &[SqlType],
) -> Result<Candidate, SqlError> {
    let fitting = procedures.into_iter().filter_map(|it| Candidate::of(it, names, types));
    let mut fitting: Vec<Candidate> = fitting.collect();
    let best = fitting.iter().map(|candidate| candidate.exact).max().unwrap_or_default();
    fitting.retain(|candidate| candidate.exact == best);
    // Untyped arguments prefer parameters of string types.
    if fitting.iter().any(Candidate::takes_texts) {
        fitting.retain(Candidate::takes_texts);
    }
    let shown = || {
        let shown = names.iter().zip(types).map(|(name, ty)| match name {
            Some(name) => format!("{name} => {ty}"),
            None => ty.to_string(),
        });
        format!("{name}({})", shown.collect::<Vec<_>>().join(", "))
    };
    match (fitting.pop(), fitting.len()) {
        (Some(one), 0) => Ok(one),
        (Some(_), _) => {
            let message = format!("procedure {} is not unique", shown());
            let hint = "Could not choose a best candidate procedure. You might need to add \
                        explicit type casts.";
            Err(SqlError::new(code::AMBIGUOUS_FUNCTION, message).with_hint(hint))
        }
        (None, _) => {
            let message = format!("procedure {} does not exist", shown());
            let hint = "No procedure matches the given name and argument types. You might need to \
                        add explicit type casts.";
            Err(SqlError::new(code::UNDEFINED_FUNCTION, message).with_hint(hint))
        }
    }
}

impl Candidate {
    /// Matches arguments to the parameters of a procedure; `None` if they do not fit.
    fn of(procedure: Procedure, names: &[Option<String>], types: &[SqlType]) -> Option<Self> {
        let mut given = vec![None; procedure.parameters.len()];
        let (mut exact, mut untyped) = (0, Vec::new());
        for (at, (name, ty)) in names.iter().zip(types).enumerate() {
            let slot = match name {
                None => at,
                Some(name) => procedure.parameters.iter().position(|it| it.name == *name)?,
            };
            let parameter = procedure.parameters.get(slot)?;
            if given[slot].replace(at).is_some() {
                return None;
            }
            if parameter.mode == Mode::Out {
                continue;
            }
            if *ty == SqlType::Unknown {
                untyped.push(slot);
            }
            let level = cast::level(*ty, parameter.ty.base)?;
            if level > Level::Implicit {
                return None;
            }
            exact += usize::from(*ty == parameter.ty.base);
        }
        let is_whole = procedure.parameters.iter().zip(&given).all(|(parameter, given)| {
            given.is_some() || (parameter.mode.is_in() && parameter.default.is_some())
        });
        is_whole.then_some(Self { procedure, given, exact, untyped })
    }

    /// Whether all untyped arguments are for parameters of string types.
    fn takes_texts(&self) -> bool {
        let parameters = &self.procedure.parameters;
        self.untyped.iter().all(|&slot| parameters[slot].ty.base.is_string())
    }
}
