//! The data of the script: curves and stacks as one JSON document. Numbers of curves are packed, because most differ
//! little from the one before:
//!
//! ```text
//! interval  varint(zigzag(last − last of the interval before))  varint(last − lowest)  varint(highest − last)
//! varint    7 bits a byte, lowest first; the highest bit says that another byte follows
//! curve     base64 of its intervals
//! ```

use serde::Serialize;

use super::markup::{base64, plain};
use super::model::{Curve, Page};
use super::stacks::{Packed, packed};

#[derive(Serialize)]
pub(crate) struct Data {
    curves: Option<CurvesData>,
    stacks: Option<Packed>,
}

#[derive(Serialize)]
struct CurvesData {
    from: i64,
    step: f64,
    intervals: usize,
    sets: Vec<SetData>,
}

#[derive(Serialize)]
struct SetData {
    name: String,
    stacked: bool,
    curves: Vec<CurveData>,
}

#[derive(Serialize)]
struct CurveData {
    name: String,
    role: &'static str,
    first: usize,
    /// It has one reading.
    once: bool,
    read: Vec<usize>,
    values: String,
}

pub(crate) fn data(page: &Page) -> Data {
    let curves = page.curves.as_ref().map(|curves| CurvesData {
        from: curves.from_ms,
        step: curves.step_ms,
        intervals: curves.intervals,
        sets: curves
            .sets
            .iter()
            .map(|set| SetData {
                name: set.name.clone(),
                stacked: set.is_stacked,
                curves: set.curves.iter().map(curve).collect(),
            })
            .collect(),
    });
    Data { curves, stacks: page.stacks.as_ref().map(packed) }
}

fn curve(curve: &Curve) -> CurveData {
    let (mut bytes, mut before) = (Vec::with_capacity(curve.values.len() * 6), 0i64);
    for [low, high, last] in &curve.values {
        // The values are below 2^53.
        let change = *last as i64 - before;
        before = *last as i64;
        varint(&mut bytes, ((change << 1) ^ (change >> 63)) as u64);
        varint(&mut bytes, last.saturating_sub(*low));
        varint(&mut bytes, high.saturating_sub(*last));
    }
    CurveData {
        name: plain(&curve.name),
        role: curve.role,
        first: curve.first,
        once: curve.is_one_reading,
        read: curve.read.clone(),
        values: base64(&bytes),
    }
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
