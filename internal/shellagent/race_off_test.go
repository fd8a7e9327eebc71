//go:build !race

package shellagent_test

var raceFlags []string
