"""Checks of a fit: importance sampling, leave-one-out, annealing, corrections of the evidence.

importance: importance sampling of the exact posterior, for all points and for blocks of points
left_out: leave-one-out cross-validation of rows and of groups of rows
annealed_evidence: unbiased estimates of the evidence by annealing
corrected_evidence: correction of EP's evidence by higher cumulants of the tilted distributions
converged_fits: texts for warnings after a fit: second modes, or nothing learned
"""
