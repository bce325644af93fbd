"""The experiments of Villacampa-Calvo and Hernández-Lobato (2017), section 4, one module each."""
