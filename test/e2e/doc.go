// Package e2e holds tests of the built programs as a person uses them: bin/astrabox
// is started as a process, reached over its HTTP API and its command line, fed
// with bad input, killed, starved of disk space and refused its needs. Each
// test then proves on the host itself that nothing was left behind.
//
// The tests need root and the programs of "make build": those that
// ASTRABOX_EXECD_PATH and its like name, else those in bin/. Without them the
// tests are skipped, and fail where CI is set. They run one after the other in
// a network namespace of their own.
package e2e
