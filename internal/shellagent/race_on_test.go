//go:build race

package shellagent_test

// raceFlags build the program with the race detector when the tests have it.
var raceFlags = []string{"-race"}
