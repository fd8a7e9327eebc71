package conform

import "slices"

// DataContract are the clauses on Files and Commands.
func DataContract() []Clause[Box] {
	return slices.Concat(nameClauses(), readClauses(), writeClauses(), changeClauses(), confinedClauses(), commandClauses(), stopClauses())
}

// ProcessesContract are the clauses on Processes; the capability of each is ProcessSessions.
func ProcessesContract() []Clause[Box] {
	all := slices.Concat(processClauses(), replayClauses(), attachClauses(), inputClauses())
	for i := range all {
		all[i].Capability, all[i].Refusal = "ProcessSessions", refusesProcesses
	}
	return all
}
