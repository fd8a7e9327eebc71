// Package sandboxfake is a sandbox provider that lives in memory.
//
// [New] gives an honest [Provider]: it keeps every promise of package sandbox,
// as the conformance suites prove, and so stands in for a backend in tests of a
// platform. Its sandboxes have a file tree with bits, owners, links and
// versions, and run command lines without a shell: the lines of package
// conform/script do what they say, every other line ends with status 127.
//
// [Provider.Faults] makes operations go wrong as backends do: refuse, hang, lose
// the answer after doing it, be slow, vanish, lie. [Mutants] lists variants that
// each break one promise, which is how the suites are themselves tested.
//
// Everything is safe for concurrent use. Time is that of package time, and all
// waiting is on channels and timers, so that a provider made inside a
// testing/synctest bubble lives in the bubble's time. [Provider.Close] ends
// every sandbox; no goroutine is left after it.
package sandboxfake
