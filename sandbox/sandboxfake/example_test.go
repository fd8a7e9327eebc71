package sandboxfake_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
	"github.com/astrabox/astrabox/sandbox/sandboxfake"
)

// A sandbox in memory has files, and runs the lines of package conform/script.
func ExampleNew() {
	ctx := context.Background()
	p := sandboxfake.New(sandboxfake.Options{})
	defer p.Close()
	h, err := p.Create(ctx, spec())
	if err != nil {
		fmt.Println(err)
		return
	}
	o := sandbox.WriteOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(0o640), Owner: sandboxfake.Account}}
	if err := h.Files().Write(ctx, "/tmp/hello", strings.NewReader("hello"), o); err != nil {
		fmt.Println(err)
		return
	}
	r, err := h.Commands().Run(ctx, sandbox.Command{Line: script.Line(script.Stat("/tmp/hello"), script.CatFile("/tmp/hello"), script.Exit(3))})
	fmt.Printf("%s, status %d, %v\n", r.Stdout, r.ExitCode, err)
	r, err = h.Commands().Run(ctx, sandbox.Command{Line: "echo there is no shell"})
	fmt.Printf("status %d, %v\n", r.ExitCode, err)
	// Output:
	// 81a0 5 agent root
	// hello, status 3, <nil>
	// status 127, <nil>
}

// What goes wrong with a backend can be made to go wrong here: this create is
// done, and its answer is lost.
func ExampleProvider_Faults() {
	ctx := context.Background()
	p := sandboxfake.New(sandboxfake.Options{})
	defer p.Close()
	p.Faults().Add(sandboxfake.Fault{Op: "Create", Effect: sandboxfake.LoseAnswer, Times: 1})
	_, err := p.Create(ctx, spec())
	fmt.Println(err)
	_, found, err := p.FindSandboxByAssignment(ctx, "i", "a")
	fmt.Println(found, err)
	// Output:
	// SANDBOX_NOT_AVAILABLE: Create was made to fail
	// true <nil>
}
