package sandboxfake

import "github.com/astrabox/astrabox/sandbox"

// bent is how a lying variant differs from the honest provider; the zero value
// is honest. What can be told from the outside is bent by a decorator, the rest
// by a knob.
type bent struct {
	files     func(*machine, sandbox.Files) sandbox.Files
	commands  func(*machine, sandbox.Commands) sandbox.Commands
	processes func(*machine, sandbox.Processes) sandbox.Processes

	// spare says what the kill of a command or a process leaves alive.
	spare func(*task) bool
	// deathless lets no lease end.
	deathless bool
}
