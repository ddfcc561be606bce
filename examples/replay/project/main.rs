fn main() {
    // TODO read the arguments
    // TODO print the answer
}
