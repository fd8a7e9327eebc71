// Package archtest holds the import law as tests: which package may import
// which, with the reason of each rule. It has no code of its own.
package archtest
