// Package version holds the version that the build stamped into the program.
package version

// Version is set by the linker (-X); a plain `go build` says dev.
var Version = "dev"
