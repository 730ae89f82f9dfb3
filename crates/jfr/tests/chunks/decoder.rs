//! A small decoder of chunks. It walks the events both like the JDK (to the chunk's end) and like JDK Mission Control
//! (to the first metadata event); both must find the same.

use std::collections::{BTreeMap, HashMap};
use std::ops::Index;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Long(u64),
    Float(f32),
    Text(String),
    Struct(BTreeMap<String, Value>),
    Array(Vec<Value>),
    /// A number in the pool of this type.
    Constant(u64, u64),
}

impl Value {
    pub fn long(&self) -> u64 {
        match self {
            Value::Long(value) => *value,
            other => panic!("{other:?} isn't a long"),
        }
    }
    pub fn text(&self) -> &str {
        match self {
            Value::Text(text) => text,
            other => panic!("{other:?} isn't a text"),
        }
    }
}

impl Index<&str> for Value {
    type Output = Value;
    fn index(&self, name: &str) -> &Value {
        match self {
            Value::Struct(fields) => &fields[name],
            other => panic!("{other:?} has no {name}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub name: String,
    pub time_ns: u64,
    pub fields: BTreeMap<String, Value>,
}

impl Event {
    pub fn long(&self, name: &str) -> u64 {
        self.fields[name].long()
    }
    pub fn text(&self, name: &str) -> &str {
        self.fields[name].text()
    }
}

#[derive(Debug)]
pub struct Chunk {
    /// 0 for a chunk without events.
    pub types: usize,
}

#[derive(Debug)]
pub struct EventType {
    pub name: String,
    /// Such as `@Label(Site)`.
    pub annotations: Vec<String>,
    /// Name, and type with annotations except labels and descriptions.
    pub fields: Vec<(String, String)>,
}

#[derive(Debug, Default)]
pub struct Read {
    pub chunks: Vec<Chunk>,
    pub events: Vec<Event>,
    pub event_types: Vec<EventType>,
}

type Outcome<T> = Result<T, String>;

pub fn read(file: &[u8]) -> Outcome<Read> {
    let mut read = Read::default();
    let mut at = 0;
    while at < file.len() {
        let rest = &file[at..];
        let long = |offset: usize| rest.get(offset..offset + 8).map(|b| u64::from_be_bytes(b.try_into().expect("8")));
        if rest.len() < 68 || &rest[..8] != b"FLR\0\0\x02\0\x01" {
            return Err(format!("no chunk at {at}"));
        }
        if rest[64..68] != [0, 0, 0, 1] {
            return Err(format!("the chunk at {at} is not finished"));
        }
        let size = long(8).unwrap_or(0) as usize;
        let chunk = rest.get(..size).filter(|chunk| chunk.len() > 68);
        let chunk = chunk.ok_or_else(|| format!("the chunk at {at} has {size} of {} bytes", rest.len()))?;
        one_chunk(chunk, &mut read).map_err(|error| format!("{error}, in the chunk at {at}"))?;
        at += size;
    }
    Ok(read)
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn byte(&mut self) -> Outcome<u8> {
        self.at += 1;
        self.bytes.get(self.at - 1).copied().ok_or_else(|| format!("the end at {}", self.at))
    }
    fn long(&mut self) -> Outcome<u64> {
        let mut value = 0;
        for index in 0..9 {
            let byte = u64::from(self.byte()?);
            if index == 8 {
                return Ok(value | byte << 56);
            }
            value |= (byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                break;
            }
        }
        Ok(value)
    }
    fn text(&mut self) -> Outcome<Value> {
        match self.byte()? {
            0 => Ok(Value::Null),
            1 => Ok(Value::Text(String::new())),
            3 => {
                let length = self.long()? as usize;
                let bytes = self.bytes.get(self.at..self.at + length).ok_or("a string past the end")?;
                self.at += length;
                String::from_utf8(bytes.to_vec()).map(Value::Text).map_err(|error| error.to_string())
            }
            other => Err(format!("encoding {other}")),
        }
    }
}

#[derive(Debug, Default)]
struct Element {
    name: String,
    attributes: HashMap<String, String>,
    children: Vec<Element>,
}

impl Element {
    fn get(&self, key: &str) -> &str {
        self.attributes.get(key).map_or("", |value| value)
    }
    fn all<'e>(&'e self, name: &'e str) -> impl Iterator<Item = &'e Element> {
        self.children.iter().filter(move |child| child.name == name)
    }
}

fn element(cursor: &mut Cursor<'_>, strings: &[String]) -> Outcome<Element> {
    let string = |cursor: &mut Cursor<'_>| -> Outcome<String> {
        strings.get(cursor.long()? as usize).cloned().ok_or_else(|| "no such string".to_owned())
    };
    let mut made = Element { name: string(cursor)?, ..Element::default() };
    for _ in 0..cursor.long()? {
        let key = string(cursor)?;
        made.attributes.insert(key, string(cursor)?);
    }
    for _ in 0..cursor.long()? {
        made.children.push(element(cursor, strings)?);
    }
    Ok(made)
}

struct Types<'e>(HashMap<u64, &'e Element>);

impl Types<'_> {
    fn value(&self, cursor: &mut Cursor<'_>, field: &Element) -> Outcome<Value> {
        if field.get("dimension") == "1" {
            return (0..cursor.long()?).map(|_| self.one(cursor, field)).collect::<Outcome<_>>().map(Value::Array);
        }
        self.one(cursor, field)
    }
    fn one(&self, cursor: &mut Cursor<'_>, field: &Element) -> Outcome<Value> {
        let id = field.get("class").parse().map_err(|_| "a field without a type")?;
        if field.get("constantPool") == "true" {
            let number = cursor.long()?;
            return Ok(if number == 0 { Value::Null } else { Value::Constant(id, number) });
        }
        self.of(cursor, id)
    }
    fn of(&self, cursor: &mut Cursor<'_>, id: u64) -> Outcome<Value> {
        let class = self.0.get(&id).ok_or_else(|| format!("no type {id}"))?;
        Ok(match class.get("name") {
            "long" | "int" => Value::Long(cursor.long()?),
            "boolean" => Value::Long(u64::from(cursor.byte()?)),
            "float" => {
                let bytes = [cursor.byte()?, cursor.byte()?, cursor.byte()?, cursor.byte()?];
                Value::Float(f32::from_be_bytes(bytes))
            }
            "java.lang.String" => cursor.text()?,
            _ => {
                let mut fields = BTreeMap::new();
                for field in class.all("field") {
                    fields.insert(field.get("name").to_owned(), self.value(cursor, field)?);
                }
                match fields.len() {
                    1 if class.get("simpleType") == "true" => fields.into_values().next().unwrap_or(Value::Null),
                    _ => Value::Struct(fields),
                }
            }
        })
    }
}

/// The constants by type and number.
type Pools = HashMap<(u64, u64), Value>;

fn one_chunk(chunk: &[u8], read: &mut Read) -> Outcome<()> {
    let root = metadata(chunk)?;
    let metadata = root.all("metadata").next().ok_or("no metadata element")?;
    root.all("region").next().ok_or("no region")?;
    let types = Types(metadata.all("class").map(|class| (class.get("id").parse().unwrap_or(0), class)).collect());
    read.chunks.push(Chunk { types: types.0.len() });
    let pools = constants(chunk, &types)?;
    events(chunk, &types, &pools, &mut read.events)?;
    if !types.0.is_empty() {
        read.event_types = event_types(&types);
    }
    Ok(())
}

fn header(chunk: &[u8], offset: usize) -> u64 {
    u64::from_be_bytes(chunk[offset..offset + 8].try_into().expect("8 bytes"))
}

/// The root of the elements.
fn metadata(chunk: &[u8]) -> Outcome<Element> {
    let mut cursor = Cursor { bytes: chunk, at: header(chunk, 24) as usize };
    cursor.long()?;
    if cursor.long()? != 0 {
        return Err("no metadata where the header says".into());
    }
    for _ in 0..3 {
        cursor.long()?;
    }
    let strings: Vec<String> =
        (0..cursor.long()?).map(|_| Ok(cursor.text()?.text().to_owned())).collect::<Outcome<_>>()?;
    element(&mut cursor, &strings)
}

/// Every constant of the checkpoints, along their chain from the last one.
fn constants(chunk: &[u8], types: &Types) -> Outcome<Pools> {
    let mut pools = Pools::new();
    let mut at = header(chunk, 16) as i64;
    for links in 0.. {
        if links > 100_000 {
            return Err("the chain of checkpoints has no end".into());
        }
        let mut cursor = Cursor { bytes: chunk, at: at as usize };
        let size = cursor.long()? as usize;
        if cursor.long()? != 1 {
            return Err(format!("no checkpoint at {at}"));
        }
        cursor.long()?;
        cursor.long()?;
        let delta = cursor.long()? as i64;
        cursor.byte()?;
        for _ in 0..cursor.long()? {
            let id = cursor.long()?;
            let count = cursor.long()?;
            if count == 0 {
                return Err("an empty pool".into());
            }
            for _ in 0..count {
                let number = cursor.long()?;
                let value = types.of(&mut cursor, id)?;
                if number == 0 || pools.insert((id, number), value).is_some() {
                    return Err(format!("constant {number} of {id} twice, or null"));
                }
            }
        }
        if cursor.at != at as usize + size {
            return Err(format!("the checkpoint at {at} is longer or shorter than it says"));
        }
        if delta == 0 {
            break;
        }
        at += delta;
    }
    Ok(pools)
}

/// Every event, from the header to the end, with its constants.
fn events(chunk: &[u8], types: &Types, pools: &Pools, into: &mut Vec<Event>) -> Outcome<()> {
    let (start_ns, start, per_second) = (header(chunk, 32), header(chunk, 48), header(chunk, 56));
    let mut ended = false;
    let mut position = 68;
    while position < chunk.len() {
        let mut cursor = Cursor { bytes: chunk, at: position };
        let size = cursor.long()? as usize;
        let id = cursor.long()?;
        if size == 0 || position + size > chunk.len() {
            return Err(format!("an event of {size} bytes at {position}"));
        }
        match types.0.get(&id) {
            Some(class) if class.get("superType") == "jdk.jfr.Event" => {
                if ended {
                    return Err(format!("an event at {position}, after what Mission Control takes for the end"));
                }
                let mut fields = BTreeMap::new();
                for field in class.all("field") {
                    let value = types.value(&mut cursor, field)?;
                    fields.insert(field.get("name").to_owned(), resolved(value, pools, 0)?);
                }
                if cursor.at != position + size {
                    return Err(format!("the event at {position} is longer or shorter than it says"));
                }
                let ticks = fields.get("startTime").map_or(0, Value::long);
                let time_ns = start_ns + ((ticks - start) as f64 / (per_second as f64 / 1e9)) as u64;
                into.push(Event { name: class.get("name").to_owned(), time_ns, fields });
            }
            Some(_) => return Err(format!("an event of type {id} at {position}")),
            // Only a reserve page ('L') may follow here, and only where Mission Control has stopped.
            None if id == 0 => ended = true,
            None if id == 1 => {}
            None if id == u64::from(b'L') && ended => {}
            None => return Err(format!("an event of type {id} at {position}")),
        }
        position += size;
    }
    if !ended {
        return Err("Mission Control would read past the end".into());
    }
    Ok(())
}

fn resolved(value: Value, pools: &Pools, depth: u32) -> Outcome<Value> {
    if depth > 20 {
        return Err("constants that refer to each other without end".into());
    }
    let next = |value| resolved(value, pools, depth + 1);
    Ok(match value {
        Value::Constant(id, number) => {
            let constant = pools.get(&(id, number)).ok_or_else(|| format!("no constant {number} of type {id}"))?;
            next(constant.clone())?
        }
        Value::Struct(fields) => {
            Value::Struct(fields.into_iter().map(|(name, value)| Ok((name, next(value)?))).collect::<Outcome<_>>()?)
        }
        Value::Array(values) => Value::Array(values.into_iter().map(next).collect::<Outcome<_>>()?),
        other => other,
    })
}

fn event_types(types: &Types<'_>) -> Vec<EventType> {
    let name_of = |element: &Element| {
        let id: u64 = element.get("class").parse().unwrap_or(0);
        types.0.get(&id).map_or("?", |class| class.get("name")).to_owned()
    };
    let annotations = |of: &Element| -> Vec<String> {
        let one = |annotation: &Element| {
            let name = name_of(annotation);
            let short = name.rsplit('.').next().unwrap_or_default().to_owned();
            match annotation.attributes.get("value").or(annotation.attributes.get("value-0")) {
                Some(value) => format!("@{short}({value})"),
                None => format!("@{short}"),
            }
        };
        of.all("annotation").map(one).collect()
    };
    let events = types.0.values().filter(|class| class.get("superType") == "jdk.jfr.Event");
    events
        .map(|class| EventType {
            name: class.get("name").to_owned(),
            annotations: annotations(class),
            fields: class
                .all("field")
                .map(|field| {
                    let mut of = name_of(field);
                    if field.get("constantPool") == "true" {
                        of += " pool";
                    }
                    for annotation in annotations(field) {
                        if !annotation.starts_with("@Label") && !annotation.starts_with("@Description") {
                            of = format!("{of} {annotation}");
                        }
                    }
                    (field.get("name").to_owned(), of)
                })
                .collect(),
        })
        .collect()
}
