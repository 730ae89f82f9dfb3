//! Stacks, frames and threads, by the names their types have in every JDK since 11.

use std::borrow::Cow;

use super::value::{Object, Value};

/// Innermost frame first.
#[derive(Clone, Copy)]
pub struct Stack<'c>(pub(super) Object<'c>);

/// One frame of a stack.
#[derive(Clone, Copy)]
pub struct Frame<'c>(Object<'c>);

/// A thread of the recorded process.
#[derive(Clone, Copy)]
pub struct Thread<'c>(pub(super) Object<'c>);

impl<'c> Stack<'c> {
    /// Deeper than the recorder's limit (64 unless `stackdepth` says otherwise).
    pub fn is_truncated(&self) -> bool {
        matches!(self.0.get("truncated"), Value::Boolean(true))
    }

    /// Innermost first.
    pub fn frames(&self) -> impl Iterator<Item = Frame<'c>> + use<'c> {
        let array = match self.0.get("frames") {
            Value::Array(array) => Some(array),
            _ => None,
        };
        array.into_iter().flat_map(|array| array.iter()).filter_map(|frame| match frame {
            Value::Object(frame) => Some(Frame(frame)),
            _ => None,
        })
    }
}

impl<'c> Frame<'c> {
    /// With dots; None for a frame without one, such as a native function.
    pub fn class(&self) -> Option<Cow<'c, str>> {
        self.0.object("method.type").and_then(class_name)
    }

    /// Its name; of a native frame the function's.
    pub fn method(&self) -> Option<Cow<'c, str>> {
        self.0.string("method.name")
    }

    /// As the class file has it: `(Ljava/lang/String;)V`.
    pub fn signature(&self) -> Option<Cow<'c, str>> {
        self.0.string("method.descriptor")
    }

    /// Above 0.
    pub fn line(&self) -> Option<u32> {
        self.0.i64("lineNumber").and_then(|line| u32::try_from(line).ok()).filter(|line| *line > 0)
    }

    /// `Interpreted`, `JIT compiled`, `Inlined`, `Native`, …
    pub fn kind(&self) -> Option<Cow<'c, str>> {
        self.0.string("type")
    }
}

impl<'c> Thread<'c> {
    /// None for a thread of the VM's own.
    pub fn java_name(&self) -> Option<Cow<'c, str>> {
        self.0.string("javaName")
    }

    /// As the kernel has it.
    pub fn os_name(&self) -> Option<Cow<'c, str>> {
        self.0.string("osName")
    }

    /// The Java name where there is one.
    pub fn name(&self) -> Option<Cow<'c, str>> {
        self.java_name().or_else(|| self.os_name())
    }

    /// `Thread.threadId()`; 0 or none for a thread of the VM's own.
    pub fn java_id(&self) -> Option<i64> {
        self.0.i64("javaThreadId")
    }

    /// The kernel's number of the thread.
    pub fn os_id(&self) -> Option<i64> {
        self.0.i64("osThreadId")
    }

    /// A virtual thread (JDK 21 or later).
    pub fn is_virtual(&self) -> bool {
        matches!(self.0.get("virtual"), Value::Boolean(true))
    }

    /// With all its fields.
    pub fn object(&self) -> Object<'c> {
        self.0
    }
}

pub(super) fn class_name(class: Object<'_>) -> Option<Cow<'_, str>> {
    let name = class.string("name")?;
    Some(if name.contains('/') { Cow::Owned(name.replace('/', ".")) } else { name })
}
