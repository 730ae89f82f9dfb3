//! A frame as it was found, and the function that views show for it.

use super::{Module, ModuleId};
use plimsoll_facts::units::Avma;

/// Origin of a frame's code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrameOrigin {
    Native,
    /// A Java method, of HotSpot (interpreted or compiled) or of a native image.
    Java,
    /// Code made at run time that isn't a Java method: stubs, other JITs.
    Jit,
    Kernel,
    #[default]
    Unknown,
}

impl FrameOrigin {
    pub const ALL: [FrameOrigin; 5] =
        [FrameOrigin::Native, FrameOrigin::Java, FrameOrigin::Jit, FrameOrigin::Kernel, FrameOrigin::Unknown];

    pub const fn name(self) -> &'static str {
        match self {
            FrameOrigin::Native => "native",
            FrameOrigin::Java => "java",
            FrameOrigin::Jit => "jit",
            FrameOrigin::Kernel => "kernel",
            FrameOrigin::Unknown => "unknown",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Demangled name. For a Java method `package.Class.method`, with `$` for nested classes and without the signature.
    pub function: Option<String>,
    pub module: Option<ModuleId>,
    /// Offset of the return address, as linked (Svma); 0 if the module is unknown.
    pub offset: u64,
    /// Address in the process; 0 if there was none (a recording's Java frame).
    pub address: Avma,
    pub file: Option<String>,
    pub line: Option<u32>,
    pub kind: FrameOrigin,
    /// The compiler inlined it into the next outer frame.
    pub inlined: bool,
}

/// The key by which views merge frames: calls of the same function from another line, at another address or in another
/// run are the same function.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Function {
    /// The function's name (for hidden classes without their addresses); else `module+0xoffset`; without a module, the
    /// address.
    pub name: String,
    /// The module's name (not its path); empty if there is none.
    pub module: String,
    pub kind: FrameOrigin,
    /// Whether the function has a real name.
    pub named: bool,
}

/// Removes what differs between runs of one program: addresses and numbers in the names of hidden and generated
/// classes.
/// `Shop$$Lambda$106+0x00007f50e1007a08.1976870338.run` → `Shop$$Lambda.run`.
fn stable(name: &str) -> String {
    let Some((class, method)) = name.rsplit_once('.') else { return name.to_string() };
    let hidden = class.find("$$Lambda").map(|at| at + "$$Lambda".len());
    let addressed = ["+0x", "/0x", ".0x"].iter().filter_map(|mark| class.find(mark)).min();
    let numbered = ["GeneratedMethodAccessor", "GeneratedConstructorAccessor"]
        .iter()
        .filter_map(|mark| class.find(mark).map(|at| at + mark.len()))
        .next();
    match [hidden, addressed, numbered].into_iter().flatten().min() {
        Some(end) => format!("{}.{method}", &class[..end]),
        None => name.to_string(),
    }
}

/// Packages of the Java platform and of Native Image's runtime. A package view skips them and looks for their caller.
const RUNTIME_PACKAGES: [&str; 9] =
    ["java.", "javax.", "jdk.", "sun.", "com.sun.", "com.oracle.svm.", "com.oracle.graal.", "org.graalvm.", "jrt."];

impl Frame {
    /// Ends a stack whose walk ended early.
    pub fn truncated() -> Frame {
        Frame { function: Some("[truncated]".into()), ..Frame::default() }
    }

    /// Replaces the stack of memory without one.
    pub fn no_stack(category: &str) -> Frame {
        Frame { function: Some(format!("{NO_STACK}{category}]")), ..Frame::default() }
    }

    /// Replaces a frame whose name would exceed the limit of a profile.
    pub(super) fn beyond() -> Frame {
        Frame { function: Some("[names beyond the limit]".into()), ..Frame::default() }
    }

    /// Bytes of its texts.
    pub(super) fn text(&self) -> usize {
        [&self.function, &self.file].into_iter().flatten().map(String::len).sum()
    }

    /// Replaces levels of a recursion that were left out.
    pub fn repeated(times: u64) -> Frame {
        Frame { function: Some(format!("[{times} more levels of recursion]")), ..Frame::default() }
    }

    pub(super) fn called(&self, module: Option<&Module>) -> Function {
        let module = module.map(|m| m.name().to_string()).unwrap_or_default();
        let named = self.function.as_ref().is_some_and(|f| !f.is_empty());
        let name = match &self.function {
            Some(function) if named && self.kind == FrameOrigin::Java => stable(function),
            Some(function) if named => function.clone(),
            _ if !module.is_empty() => format!("{module}+{:#x}", self.offset),
            _ if self.address != Avma(0) => format!("{:#x}", self.address),
            _ => "[unknown]".into(),
        };
        Function { name, module, kind: self.kind, named }
    }
}

const NO_STACK: &str = "[no stack: ";

impl Function {
    /// Whether it replaces a missing stack.
    pub fn is_no_stack(&self) -> bool {
        self.kind == FrameOrigin::Unknown && self.name.starts_with(NO_STACK)
    }

    pub fn is_truncation(&self) -> bool {
        self.kind == FrameOrigin::Unknown && self.name == "[truncated]"
    }

    /// The package of a Java method: `org.acme` for `org.acme.Shop$Item.<init>`. Empty for a class without a package.
    pub fn package(&self) -> Option<&str> {
        if self.kind != FrameOrigin::Java || !self.named {
            return None;
        }
        let method = self.name.split('(').next().unwrap_or(&self.name);
        let class = method.rsplit_once('.').map_or("", |(class, _)| class);
        // Hidden classes: `Shop$$Lambda/0x0000713f8c0015e8`, `Shop$$Lambda+0x713f`, `Shop$$Lambda.0x713f`.
        let outer = class.split(['$', '/', '+']).next().unwrap_or(class);
        Some(outer.rsplit_once('.').map_or("", |(package, _)| package))
    }

    /// Whether it is Java code of the platform or of Native Image's runtime, which users can't change.
    pub fn is_runtime(&self) -> bool {
        self.package().is_some_and(|_| RUNTIME_PACKAGES.iter().any(|p| self.name.starts_with(p)))
    }
}
