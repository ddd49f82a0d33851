//! `+ - * / -x` on outputs, and between outputs and numbers.

use crate::Output;
use crate::literal::number;
use downpour_graph::Status;
use std::ops::{Add, Div, Mul, Neg, Rem, Sub};
use std::panic::Location;

impl Output {
    /// `op` of this and another output.
    #[track_caller]
    pub(crate) fn binary(&self, op: &str, other: &Output) -> Output {
        self.graph().op(op).input(self).input(other).output()
    }

    /// A scalar constant of this output's type.
    #[track_caller]
    pub(crate) fn scalar_like(&self, value: f64) -> Output {
        if self.is_invalid() {
            return self.clone();
        }
        match number(value, self.dtype()) {
            Some(value) => self.graph().constant(value),
            None => {
                let error = Status::invalid_argument(format!(
                    "{} has no numbers: {value} cannot be combined with '{}'",
                    self.dtype().name(),
                    self.name()
                ));
                self.graph().fail(error, Location::caller());
                self.graph().invalid()
            }
        }
    }
}

macro_rules! operator {
    ($trait:ident, $method:ident, $op:expr) => {
        impl $trait<&Output> for &Output {
            type Output = Output;
            #[track_caller]
            fn $method(self, other: &Output) -> Output {
                self.binary($op(self), other)
            }
        }

        impl $trait<Output> for &Output {
            type Output = Output;
            #[track_caller]
            fn $method(self, other: Output) -> Output {
                self.binary($op(self), &other)
            }
        }

        impl $trait<&Output> for Output {
            type Output = Output;
            #[track_caller]
            fn $method(self, other: &Output) -> Output {
                self.binary($op(&self), other)
            }
        }

        impl $trait<Output> for Output {
            type Output = Output;
            #[track_caller]
            fn $method(self, other: Output) -> Output {
                self.binary($op(&self), &other)
            }
        }

        operator!(number $trait, $method, $op, f64);
        operator!(number $trait, $method, $op, i32);
    };
    (number $trait:ident, $method:ident, $op:expr, $t:ty) => {
        impl $trait<$t> for &Output {
            type Output = Output;
            #[track_caller]
            fn $method(self, other: $t) -> Output {
                let other = self.scalar_like(f64::from(other));
                self.binary($op(self), &other)
            }
        }

        impl $trait<$t> for Output {
            type Output = Output;
            #[track_caller]
            fn $method(self, other: $t) -> Output {
                let other = self.scalar_like(f64::from(other));
                self.binary($op(&self), &other)
            }
        }

        impl $trait<&Output> for $t {
            type Output = Output;
            #[track_caller]
            fn $method(self, other: &Output) -> Output {
                other
                    .scalar_like(f64::from(self))
                    .binary($op(other), other)
            }
        }

        impl $trait<Output> for $t {
            type Output = Output;
            #[track_caller]
            fn $method(self, other: Output) -> Output {
                other
                    .scalar_like(f64::from(self))
                    .binary($op(&other), &other)
            }
        }
    };
}

operator!(Add, add, |_: &Output| "AddV2");
operator!(Sub, sub, |_: &Output| "Sub");
operator!(Mul, mul, |_: &Output| "Mul");
// As in python, `/` of integers would be a float; here it is the integers' own division.
operator!(Div, div, |x: &Output| match x.dtype().is_integer() {
    true => "FloorDiv",
    false => "RealDiv",
});
operator!(Rem, rem, |_: &Output| "FloorMod");

impl Neg for &Output {
    type Output = Output;
    #[track_caller]
    fn neg(self) -> Output {
        self.graph().op("Neg").input(self).output()
    }
}

impl Neg for Output {
    type Output = Output;
    #[track_caller]
    fn neg(self) -> Output {
        -&self
    }
}
