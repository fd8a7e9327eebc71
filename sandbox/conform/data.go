package conform

import "slices"

// DataContract are the clauses on Files and Commands.
func DataContract() []Clause[Box] { return slices.Clip([]Clause[Box]{}) }

// ProcessesContract are the clauses on Processes; the capability of each is ProcessSessions.
func ProcessesContract() []Clause[Box] { return slices.Clip([]Clause[Box]{}) }
