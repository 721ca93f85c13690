//! Pangea's expressions as DataFusion functions.

use std::any::Any;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, Expr as Logical, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

use xxhash_rust::xxh3::xxh3_64;

use super::error::wrapped;
use super::run::PendingReads;
use super::values::{Column, Values, arrow_type, key_of};
use crate::expr::{Env, Expr};
use crate::types::SqlType;
use crate::types::datum::Datum;

/// The state of the statement that expressions read while DataFusion runs it.
#[derive(Clone, Debug)]
pub(super) struct EvalContext {
    pub env: Arc<Mutex<Env>>,
    pub pending_reads: Arc<PendingReads>,
}

impl ConfigExtension for EvalContext {
    const PREFIX: &'static str = "pangea";
}

impl ExtensionOptions for EvalContext {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, _: &str) -> Result<()> {
        Err(DataFusionError::Configuration(format!("there is no option pangea.{key}")))
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        Vec::new()
    }
}

/// Returns the surroundings of a run.
pub(super) fn eval_context(options: &ConfigOptions) -> Result<&EvalContext> {
    let found = options.extensions.get::<EvalContext>();
    found.ok_or_else(|| DataFusionError::Internal("an expression without a statement".to_owned()))
}

/// An expression that is evaluated over its arguments row by row.
#[derive(Debug)]
pub(crate) struct Computed {
    pub expr: Expr,
    /// The types of the arguments, which are the columns of the expression.
    pub args: Vec<SqlType>,
    pub base: SqlType,
    /// A unique name: DataFusion takes functions with the same name as identical.
    name: String,
    signature: Signature,
}

impl PartialEq for Computed {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.expr == other.expr
            && self.args == other.args
            && self.base == other.base
    }
}

impl Eq for Computed {}

impl Hash for Computed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl Computed {
    /// Returns the call of an expression whose columns are these arguments.
    pub(super) fn call(expr: Expr, args: Vec<(Logical, SqlType)>, base: SqlType) -> Logical {
        let (frames, types): (Vec<Logical>, Vec<SqlType>) = args.into_iter().unzip();
        let volatility = if is_volatile(&expr) { Volatility::Volatile } else { Volatility::Stable };
        let arrow = types.iter().map(|base| arrow_type(*base)).collect();
        let signature = match types.is_empty() {
            true => Signature::nullary(volatility),
            false => Signature::exact(arrow, volatility),
        };
        let shown = format!("{expr:?} {types:?} {base:?}");
        let name = format!("computed_{:016x}", xxh3_64(shown.as_bytes()));
        ScalarUDF::from(Self { expr, args: types, base, name, signature }).call(frames)
    }
}

/// Whether the expression may return a different value at each evaluation.
pub(super) fn is_volatile(expr: &Expr) -> bool {
    !expr.all(&mut |part| match part {
        Expr::Sequence(..) => false,
        Expr::Call(function, _) => !function.is_volatile(),
        _ => true,
    })
}

impl ScalarUDFImpl for Computed {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(arrow_type(self.base))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let env = &eval_context(&args.config_options)?.env;
        let env = env.lock().unwrap_or_else(PoisonError::into_inner);
        let count = args.number_rows;
        // Constants arrive as one row regardless of the count. One row suffices unless the
        // expression is volatile.
        let arrays = match self.signature.volatility {
            Volatility::Volatile => {
                let arrays = args.args.iter().map(|arg| arg.to_array(count));
                arrays.collect::<Result<Vec<_>>>()?
            }
            _ => ColumnarValue::values_to_arrays(&args.args)?,
        };
        let columns: Vec<Values<'_>> =
            self.args.iter().zip(&arrays).map(|(base, array)| Values::new(*base, array)).collect();
        let rows = arrays.first().map_or(count, |array| array.len());
        let mut out = Column::new(self.base);
        let mut row = vec![Datum::Null; columns.len()];
        for at in 0..rows {
            for (value, column) in row.iter_mut().zip(&columns) {
                *value = column.get(at).map_err(wrapped)?;
            }
            out.push(&self.expr.eval(&row, &env).map_err(wrapped)?);
        }
        Ok(ColumnarValue::Array(out.finish()))
    }
}

/// The comparison key of a value, for types that Arrow does not compare like SQL.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeyOf {
    pub base: SqlType,
    name: String,
    signature: Signature,
}

impl KeyOf {
    pub(super) fn call(base: SqlType, value: Logical) -> Logical {
        let signature = Signature::exact(vec![arrow_type(base)], Volatility::Immutable);
        let name = format!("key_of_{}", base.oid());
        ScalarUDF::from(Self { base, name, signature }).call(vec![value])
    }
}

impl ScalarUDFImpl for KeyOf {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Binary)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays: Vec<ArrayRef> = ColumnarValue::values_to_arrays(&args.args)?;
        let values = Values::new(self.base, &arrays[0]);
        let mut out = Column::new(SqlType::Bytea);
        for at in 0..arrays[0].len() {
            let datum = values.get(at).map_err(wrapped)?;
            out.push(&key_of(self.base, &datum).map_err(wrapped)?);
        }
        Ok(ColumnarValue::Array(out.finish()))
    }
}
