// TODO think of a better name
pub fn thing() {}
