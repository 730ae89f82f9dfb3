//! Stacks, frames and threads. Their types have the same names in every JDK since 11.

use std::borrow::Cow;

use super::value::{Object, Value};

/// A stack, innermost frame first.
#[derive(Clone, Copy)]
pub struct Stack<'c>(pub(super) Object<'c>);

/// One frame of a stack.
#[derive(Clone, Copy)]
pub struct Frame<'c>(Object<'c>);

/// A thread of the recorded process.
#[derive(Clone, Copy)]
pub struct Thread<'c>(pub(super) Object<'c>);

impl<'c> Stack<'c> {
    /// Whether the stack was deeper than the recorder's limit (`stackdepth`, 64 by default).
    pub fn is_truncated(&self) -> bool {
        matches!(self.0.get("truncated"), Value::Boolean(true))
    }

    /// The frames, innermost first.
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
    /// The class name with dots; None for a frame without a class, such as a native function.
    pub fn class(&self) -> Option<Cow<'c, str>> {
        self.0.object("method.type").and_then(class_name)
    }

    /// The method's name, or the function's for a native frame.
    pub fn method(&self) -> Option<Cow<'c, str>> {
        self.0.string("method.name")
    }

    /// The descriptor as in the class file: `(Ljava/lang/String;)V`.
    pub fn signature(&self) -> Option<Cow<'c, str>> {
        self.0.string("method.descriptor")
    }

    /// The line number, if it is above 0.
    pub fn line(&self) -> Option<u32> {
        self.0.i64("lineNumber").and_then(|line| u32::try_from(line).ok()).filter(|line| *line > 0)
    }

    /// `Interpreted`, `JIT compiled`, `Inlined`, `Native`, …
    pub fn kind(&self) -> Option<Cow<'c, str>> {
        self.0.string("type")
    }
}

impl<'c> Thread<'c> {
    /// The Java name; None for a VM thread.
    pub(crate) fn java_name(&self) -> Option<Cow<'c, str>> {
        self.0.string("javaName")
    }

    /// The thread's name in the kernel.
    pub(crate) fn os_name(&self) -> Option<Cow<'c, str>> {
        self.0.string("osName")
    }

    /// The Java name if there is one, else the kernel's.
    pub fn name(&self) -> Option<Cow<'c, str>> {
        self.java_name().or_else(|| self.os_name())
    }

    /// `Thread.threadId()`; 0 or None for a VM thread.
    pub fn java_id(&self) -> Option<i64> {
        self.0.i64("javaThreadId")
    }

    /// The kernel's thread id.
    pub fn os_id(&self) -> Option<i64> {
        self.0.i64("osThreadId")
    }

    /// Whether it is a virtual thread (JDK 21 or later).
    pub fn is_virtual(&self) -> bool {
        matches!(self.0.get("virtual"), Value::Boolean(true))
    }

    /// The thread's object, with all its fields.
    pub fn object(&self) -> Object<'c> {
        self.0
    }
}

pub(super) fn class_name(class: Object<'_>) -> Option<Cow<'_, str>> {
    let name = class.string("name")?;
    Some(if name.contains('/') { Cow::Owned(name.replace('/', ".")) } else { name })
}
