package script_test

import (
	"fmt"

	"github.com/astrabox/astrabox/sandbox/conform/script"
)

func Example() {
	line := script.Line(script.WriteFile("/tmp/it's", "hi\n"), script.Exit(3))
	fmt.Println(line)
	steps, ok := script.Parse(line)
	fmt.Println(ok, steps[0].Name(), steps[0].Arg(1), steps[1].Int(0))
	_, ok = script.Parse("exit 3; echo hi")
	fmt.Println(ok)
	// Output:
	// printf '\150\151\012' >'/tmp/it'\''s'
	// exit 3
	// true write /tmp/it's 3
	// false
}
