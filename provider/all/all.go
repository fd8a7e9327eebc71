// Package all installs every bundled provider by importing it. It is the only
// list of them; the program that serves imports this package.
package all

import (
	_ "github.com/astrabox/astrabox/provider/opensandbox" // open_sandbox
)
