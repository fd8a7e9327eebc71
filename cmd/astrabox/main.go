// Command astrabox is the server, its bundled sandbox service and the command
// line, in one program.
package main

import (
	"context"
	"os"

	"github.com/astrabox/astrabox/internal/cli"
)

func main() {
	os.Exit(cli.Main(context.Background(), os.Args[1:], cli.OS()))
}
